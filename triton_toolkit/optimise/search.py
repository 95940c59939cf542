"""Which layers must get their precision back, so that a variant passes its gate.

A list of operators to keep does not do: what hurts depends on the weights and the data. So layers are
measured. Each trial makes a variant with some layers kept and judges it, which may take minutes, so
trials are few, their number is bounded, and their results are kept in a file: a search that was
stopped goes on where it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton_toolkit.optimise.groups import Group

ATTEMPTS = 24
"""Trials, unless the caller says otherwise."""

_RANKING_SHARE = 0.5
"""Share of the trials that find out which layers do the damage; the others find out how many suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the gate says of one variant.

    Attributes:
        ok: Whether it passes.
        score: How good it is; higher is better. NaN counts as worst.
        text: What is wrong with it, empty where nothing is.
    """

    ok: bool
    score: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the curve: ``kept`` layers have their precision back."""

    kept: int
    score: float
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What some layers cost: how far the score falls when they alone have the lower precision."""

    groups: tuple[str, ...]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search has found.

    Attributes:
        ok: Whether a variant passes that has not all its layers kept.
        kept: Names of the nodes that get their precision back; where ``ok`` is false, of the best
            variant that was tried.
        kept_groups: The layers they belong to.
        groups: Number of layers that there are.
        judgement: Of the variant with these kept.
        curve: Score against layers kept, by number of layers.
        damage: Layers by the damage they do, worst first.
        attempts: Trials used.
        limit: Trials allowed.
    """

    ok: bool
    kept: frozenset[str]
    kept_groups: tuple[str, ...]
    groups: int
    judgement: Judgement
    curve: tuple[Point, ...]
    damage: tuple[Damage, ...]
    attempts: int
    limit: int

    @property
    def text(self) -> str:
        """The curve and the worst layers, a line each."""
        lines = [f"layers kept, of {self.groups}   score   gate"]
        lines += [f"{p.kept:>11}   {p.score:>12.6g}   {'passes' if p.ok else 'missed'}" for p in self.curve]
        for damage in self.damage[:5]:
            names = ", ".join(damage.groups[:4]) + (", …" if len(damage.groups) > 4 else "")
            lines.append(f"{names} alone: score falls by {damage.score:.4g}")
        lines.append(f"{self.attempts} of at most {self.limit} trials")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; figures that are not finite become null."""
        return {
            "ok": self.ok,
            "kept_layers": list(self.kept_groups),
            "layers": self.groups,
            "score": _finite(self.judgement.score),
            "curve": [{"kept": p.kept, "score": _finite(p.score), "ok": p.ok} for p in self.curve],
            "damage": [{"layers": list(d.groups), "score": _finite(d.score)} for d in self.damage],
            "attempts": self.attempts,
            "limit": self.limit,
        }


def find_kept(
    groups: Sequence[Group], trial: Callable[[frozenset[str]], Judgement], *, attempts: int = ATTEMPTS
) -> Search:
    """Find a small set of layers whose precision, given back, makes the gate pass.

    First, runs of neighbouring layers are given the lower precision alone, the worst are cut in halves
    and tried again: that ranks them. Then the shortest beginning of the ranking that passes is found by
    bisection, and each part of it is tried without, in case the rest suffices. Where more layers kept
    never make it worse and the trials last, no layer of the result can be left out. Whatever the gate
    is, a result that is ``ok`` was judged so.

    Args:
        groups: Layers, in the order of the graph.
        trial: Judges the variant that keeps some nodes (``trials.Trials``); asked once for each set.
        attempts: Most trials.
    """
    return _Searcher(groups, trial, max(attempts, 2)).run()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring layers that are treated as one."""

    groups: tuple[Group, ...]
    damage: float = field(default=0.0, compare=False)

    @property
    def density(self) -> float:
        """Damage a layer: what keeping them gains for what it costs."""
        return self.damage / len(self.groups)

    def halves(self) -> tuple[_Piece, _Piece]:
        middle = len(self.groups) // 2
        return _Piece(self.groups[:middle]), _Piece(self.groups[middle:])


class _OutOfTrials(Exception):  # noqa: N818 - ends a phase, is no error
    pass


class _Searcher:
    def __init__(
        self, groups: Sequence[Group], trial: Callable[[frozenset[str]], Judgement], attempts: int
    ) -> None:
        self._groups = tuple(groups)
        self._trial = trial
        self._limit = attempts
        self._known: dict[frozenset[Group], Judgement] = {}
        self._points: dict[frozenset[Group], Judgement] = {}
        self._damage: tuple[_Piece, ...] = ()

    def run(self) -> Search:
        everything = frozenset(self._groups)
        if self._judge(frozenset()).ok or not everything:
            return self._result(frozenset())
        if not self._judge(everything).ok:
            return self._result(self._best())
        kept = everything
        try:
            pieces = self._ranked(everything)
            kept = self._shortest_beginning(pieces)
            for smaller in self._thinned(kept, pieces):
                kept = smaller
        except _OutOfTrials:
            passing = [k for k, judgement in self._points.items() if judgement.ok]
            kept = min(passing, key=lambda k: (len(k), self._order(k)))
        return self._result(kept if kept != everything else self._best())

    def _judge(self, kept: frozenset[Group], *, is_point: bool = True) -> Judgement:
        if kept not in self._known:
            if len(self._known) >= self._limit:
                raise _OutOfTrials
            self._known[kept] = self._trial(frozenset(name for group in kept for name in group.nodes))
        if is_point:
            self._points[kept] = self._known[kept]
        return self._known[kept]

    def _ranked(self, everything: frozenset[Group]) -> list[_Piece]:
        """Return the layers in pieces, those that do most damage a layer first."""
        best = _score(self._known[everything])
        budget = max(1, int((self._limit - len(self._known)) * _RANKING_SHARE))
        end = len(self._known) + budget

        def measured(piece: _Piece) -> _Piece:
            alone = self._judge(everything - set(piece.groups), is_point=False)
            return _Piece(piece.groups, best - _score(alone))

        count = min(len(self._groups), max(2, budget // 2)) if budget >= 2 else 1
        bounds = [len(self._groups) * i // count for i in range(count + 1)]
        parts = [self._groups[a:b] for a, b in itertools.pairwise(bounds) if b > a]
        pieces = [measured(_Piece(part)) for part in parts]
        while len(self._known) + 2 <= end:
            large = [piece for piece in pieces if len(piece.groups) > 1 and piece.damage > 0]
            if not large:
                break
            worst = max(large, key=lambda piece: piece.damage)
            at = pieces.index(worst)
            pieces[at : at + 1] = [measured(half) for half in worst.halves()]
        pieces.sort(key=lambda piece: -piece.density)  # stable: ties stay in the graph's order
        self._damage = tuple(sorted(pieces, key=lambda piece: -piece.damage))
        return pieces

    def _shortest_beginning(self, pieces: Sequence[_Piece]) -> frozenset[Group]:
        """Return the layers of the shortest beginning that passes, by bisection."""
        fails, passes = 0, len(pieces)
        while passes - fails > 1:
            middle = (fails + passes) // 2
            if self._judge(_union(pieces[:middle])).ok:
                passes = middle
            else:
                fails = middle
        return _union(pieces[:passes])

    def _thinned(self, kept: frozenset[Group], pieces: Sequence[_Piece]) -> Iterable[frozenset[Group]]:
        """Yield ever smaller sets that pass, leaving out what does least damage first."""
        todo = [piece for piece in reversed(pieces) if set(piece.groups) <= kept]
        while todo:
            piece = todo.pop(0)
            without = kept - set(piece.groups)
            if without and self._judge(without).ok:
                kept = without
                yield kept
            elif len(piece.groups) > 1:
                todo[:0] = piece.halves()

    def _best(self) -> frozenset[Group]:
        """Return what was tried and is nearest to passing, everything kept left aside."""
        tried = [kept for kept in self._points if len(kept) < len(self._groups)]
        return max(
            tried, key=lambda k: (self._points[k].ok, _score(self._points[k]), -len(k)), default=frozenset()
        )

    def _order(self, kept: frozenset[Group]) -> list[int]:
        return [index for index, group in enumerate(self._groups) if group in kept]

    def _result(self, kept: frozenset[Group]) -> Search:
        judgement = self._known[kept]
        curve = sorted((len(k), _score(j), j.ok) for k, j in self._points.items())
        return Search(
            ok=judgement.ok,
            kept=frozenset(name for group in kept for name in group.nodes),
            kept_groups=tuple(group.name for group in self._groups if group in kept),
            groups=len(self._groups),
            judgement=judgement,
            curve=tuple(Point(kept=k, score=s, ok=ok) for k, s, ok in curve),
            damage=tuple(
                Damage(groups=tuple(group.name for group in piece.groups), score=piece.damage)
                for piece in self._damage
                if piece.damage > 0
            ),
            attempts=len(self._known),
            limit=self._limit,
        )


def _union(pieces: Iterable[_Piece]) -> frozenset[Group]:
    return frozenset(group for piece in pieces for group in piece.groups)


def _score(judgement: Judgement) -> float:
    return -math.inf if math.isnan(judgement.score) else judgement.score


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
