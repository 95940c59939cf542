"""The proof: the export computes what the original computes, at every declared size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Difference, Tolerances, compare_outputs
from triton_toolkit.core.dims import Sizes
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.samples import format_sizes
from triton_toolkit.export.session import RunFailed, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
Shapes = dict[str, tuple[int, ...]]
Cases = Sequence[tuple[Sizes, Callable[[], Arrays]]]
Why = Callable[[Sequence[Sizes], Sequence[Sizes]], str]


_ROUNDING = 0.01
"""An error below this share of an output's largest value is taken for rounding, not for a mistake."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    problem: str
    share: float  # of the output's largest magnitude; infinite where there is no number for it


@dataclass(slots=True)
class Proof:
    """What was found at each combination of sizes."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[tuple[Sizes, Shapes]] = field(default_factory=list)
    nan_outputs: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tried:
    """What came of running original and export on every case.

    Attributes:
        proof: What was found at each combination of sizes.
        right: Combinations at which the export is right.
        wrong: Those at which it is not.
        broken: Those at which the original itself fails.
    """

    proof: Proof = field(default_factory=Proof)
    right: list[Sizes] = field(default_factory=list)
    wrong: list[tuple[Sizes, _Wrong]] = field(default_factory=list)
    broken: list[tuple[Sizes, ExportError]] = field(default_factory=list)

    def error(self, why: Why) -> ExportError | None:
        """Return what is wrong, None where nothing is: about the original, or a ParityError."""
        if self.broken:
            failed = [sizes for sizes, _ in self.broken]
            others = [*self.right, *(sizes for sizes, _ in self.wrong)]
            return _explained(self.broken[0][1], failed, others, why)
        return _parity_error(self.wrong, self.right, why) if self.wrong else None


def prove(
    expected: Callable[[Arrays, str], Arrays],
    session: Session,
    cases: Cases,
    tolerances: Tolerances,
    sources: Mapping[str, str],
    why: Why = lambda failed, right: "",
) -> Proof:
    """Run original and export on every case and compare.

    Args:
        expected: The original; its second argument says what it does where it fails.
        session: The export.
        cases: Sizes, and what makes the inputs of those sizes.
        tolerances: How far outputs may lie apart.
        sources: Node name -> place in the user's code.
        why: Looks for what is at fault, given the sizes that fail and those that are right.

    Raises:
        ExportError: The original itself fails at some of the sizes.
        ParityError: The export fails or differs; names sizes, outputs, figures and tolerance.
    """
    tried = try_cases(expected, session, cases, tolerances, sources)
    error = tried.error(why)
    if error is not None:
        raise error
    return tried.proof


def try_cases(
    expected: Callable[[Arrays, str], Arrays],
    session: Session,
    cases: Cases,
    tolerances: Tolerances,
    sources: Mapping[str, str],
) -> Tried:
    """Run original and export on every case; see ``prove``.

    Every case is run even after a failure, because which sizes fail tells which dimension is to blame.
    """
    tried = Tried()
    for sizes, make in cases:
        inputs = make()
        try:
            wanted = expected(inputs, f"fails at {format_sizes(sizes)}")
        except ExportError as exc:
            tried.broken.append((sizes, exc))
            continue
        problem = _case(tried.proof, session, sizes, (inputs, wanted), tolerances, sources)
        if problem:
            tried.wrong.append((sizes, problem))
        else:
            tried.right.append(sizes)
    return tried


def _case(
    proof: Proof,
    session: Session,
    sizes: Sizes,
    arrays: tuple[Arrays, Arrays],
    tolerances: Tolerances,
    sources: Mapping[str, str],
) -> _Wrong | None:
    """Record one case; return what is wrong with it, or None."""
    import numpy as np

    inputs, wanted = arrays
    try:
        got = session.predict(inputs)
    except RunFailed as exc:
        return _Wrong(_node_failure(exc, sources), float("inf"))
    differences = compare_outputs(got, wanted, tolerances)
    proof.entries.append({"sizes": dict(sizes), "outputs": [d.as_dict() for d in differences]})
    proof.shapes.append((dict(sizes), {name: array.shape for name, array in wanted.items()}))
    proof.nan_outputs |= {
        name
        for name, array in wanted.items()
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any()
    }
    bad = [difference for difference in differences if not difference.ok]
    if not bad:
        return None
    text = "; ".join(f"output {difference.output!r} {difference.problem}" for difference in bad)
    return _Wrong(f"the export differs from the model: {text}", max(_share(d, wanted) for d in bad))


def _share(difference: Difference, wanted: Arrays) -> float:
    """Return the largest error as a share of the output's largest magnitude."""
    import numpy as np

    if not math.isfinite(difference.max_absolute):
        return difference.max_absolute
    magnitudes = np.abs(wanted[difference.output].astype(np.float64))
    largest = float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))
    return difference.max_absolute / largest if largest else float("inf")


def _parity_error(wrong: Sequence[tuple[Sizes, _Wrong]], right: Sequence[Sizes], why: Why) -> ExportError:
    """Tell rounding, which a tolerance allows, from wrong results, which something is to blame for."""
    sizes, first = wrong[0]
    error: ExportError = ParityError(f"at {format_sizes(sizes)} {first.problem}")
    share = max(problem.share for _, problem in wrong)
    if share > _ROUNDING:
        return _explained(error, [failed for failed, _ in wrong], right, why)
    return ParityError(
        f"{error.message}; the error is at most {share:.2g} of the output's largest value",
        hint="that is rounding rather than a wrong result: where it is acceptable, raise the model's "
        "tolerance in tt.yaml (fp16 needs about {absolute: 0.01, relative: 0.01})",
    )


def _explained(error: ExportError, failed: Sequence[Sizes], right: Sequence[Sizes], why: Why) -> ExportError:
    """Return the error with the sizes that fail, and what is at fault where that is found."""
    explained = explain_sizes(error, failed, right)
    reason = why(failed, right)
    found = f". {reason[0].upper()}{reason[1:]}" if reason else ""
    return type(error)(explained.message + found, hint=explained.hint, detail=explained.detail)


def _node_failure(exc: RunFailed, sources: Mapping[str, str]) -> str:
    if not exc.node:
        return f"ONNX Runtime fails: {exc.reason}"
    place = sources.get(exc.node)
    made = f", made from {place}" if place else ""
    return f"ONNX Runtime fails in node {exc.node!r} ({exc.operator}{made}): {exc.reason}"


def explain_sizes(error: ExportError, failed: Sequence[Sizes], right: Sequence[Sizes]) -> ExportError:
    """Return the error with the sizes that fail, those that are right, and the dimension to blame.

    Args:
        error: What happened at the first of the failed sizes.
        failed: Combinations of sizes that fail, at least one.
        right: Combinations that do not; without any the error is returned as it is.
    """
    if not right:
        return error
    blamed = blame(failed, right)
    who = " and ".join(repr(name) for name in blamed) or "a combination of dimensions"
    bad, good = (_listed(group) for group in (failed, right))
    return type(error)(
        f"{error.message}. {who} {'are' if len(blamed) > 1 else 'is'} declared dynamic, but "
        f"fails at {bad} and is right at {good}",
        hint="look for a number where forward needs x.shape[...] or -1, for a branch on a size, or narrow "
        "the range in dims",
        detail=error.detail,
    )


def _listed(group: Sequence[Sizes]) -> str:
    ascending = sorted(group, key=lambda sizes: tuple(sizes.values()))
    return "; ".join(format_sizes(sizes) for sizes in ascending)


def blame(failed: Sequence[Sizes], right: Sequence[Sizes]) -> list[str]:
    """Return the dimensions that alone turn a right combination of sizes into a failing one."""
    differing = [{name for name in a if a[name] != b[name]} for a in failed for b in right]
    return [name for name in failed[0] if {name} in differing] if failed else []
