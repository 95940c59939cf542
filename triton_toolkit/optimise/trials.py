"""The trials of a sensitivity search on files: made in a scratch folder, judged, remembered."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from triton_toolkit._files import hash_tree, sha256_bytes, write_json
from triton_toolkit.errors import EnvironmentProblem
from triton_toolkit.optimise.search import Judgement

_FORMAT = 1


def _ignore(_: str) -> None:
    """Tell nobody."""


@dataclass(slots=True, kw_only=True)
class Trials:
    """Makes and judges the variant that keeps some nodes; called by ``find_kept``.

    Judgements are remembered in a file that is written whole after each trial, so a search that was
    stopped goes on where it was, and a repeated one is done at once.

    Attributes:
        reference: The FP32 file; what lies in its folder counts for the memory.
        make: Writes the variant that keeps some nodes to a path in a new, empty folder.
        judge: Judges such a file.
        folder: Scratch folder; nothing is left in it.
        state: The file that remembers. None: nothing is remembered.
        key: What judgements depend on besides: the method, its data, the gate. Those of another key
            are forgotten.
        progress: Is told each trial that is made.
    """

    reference: Path
    make: Callable[[frozenset[str], Path], object]
    judge: Callable[[Path], Judgement]
    folder: Path
    state: Path | None = None
    key: str = ""
    progress: Callable[[str], None] = _ignore
    _known: dict[str, Judgement] = field(init=False, repr=False, default_factory=dict)
    _full_key: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        """Read what is remembered."""
        if self.state is not None:
            files = hash_tree(self.reference.parent)
            self._full_key = sha256_bytes(json.dumps([_FORMAT, files, self.key]).encode())
            self._known = _read(self.state, self._full_key)

    def __call__(self, kept: frozenset[str]) -> Judgement:
        """Return the judgement of the variant that keeps these nodes."""
        digest = sha256_bytes(json.dumps(sorted(kept)).encode())
        if digest not in self._known:
            found = self._known[digest] = self._made_and_judged(kept)
            verdict = "passes" if found.ok else "missed"
            number = len(self._known)
            self.progress(f"trial {number}: {len(kept)} nodes in FP32, score {found.score:.5g}, {verdict}")
            if self.state is not None:
                _write(self.state, self._full_key, self._known)
        return self._known[digest]

    def _made_and_judged(self, kept: frozenset[str]) -> Judgement:
        scratch = self.folder / "trial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            self.make(kept, scratch / "model.onnx")
            return self.judge(scratch / "model.onnx")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _read(path: Path, key: str) -> dict[str, Judgement]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] != key:
            return {}
        return {
            digest: Judgement(ok=entry["ok"], score=float(entry["score"]), text=entry["text"])
            for digest, entry in stored["trials"].items()
        }
    except (OSError, ValueError, TypeError, KeyError):  # none yet, or damaged by something else
        return {}


def _write(path: Path, key: str, known: dict[str, Judgement]) -> None:
    trials = {
        digest: {"ok": judgement.ok, "score": _plain(judgement.score), "text": judgement.text}
        for digest, judgement in known.items()
    }
    with contextlib.suppress(OSError, EnvironmentProblem):  # then it is judged again the next time
        write_json(path, {"key": key, "trials": trials})


def _plain(score: float) -> float | str:
    """Return a score as JSON can hold it: infinities and NaN as words."""
    return score if math.isfinite(score) else str(score)
