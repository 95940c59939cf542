"""The table of docs/architectures.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.zoo.run import Outcome
from triton_toolkit._files import write_text
from triton_toolkit.optimise.job import OptimiseReport

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
_HEADER = """\
| architecture | parameters | opset | export | FP16 | INT8 |
|---|---|---|---|---|---|
"""
_SENTENCES = """\
| form | largest change of a similarity | allowed |
|---|---|---|
"""
_SHORT = {
    "both of its inputs are computed (as in attention); only weights are quantized ahead of time": (
        "both factors are computed"
    ),
    "without it in FP32 the variant is not close enough to the original": "for the gate",
}
"""Reasons that many nodes have, shorter."""


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return a row of the table."""
    title = outcome.architecture.title
    if outcome.exported is None:
        return title, "", "", f"refused: {_refused(outcome, 'export')}", "", ""
    return (
        title,
        _count(outcome.parameters),
        str(outcome.exported.onnx["opset"][""]),
        f"{outcome.errors['export']:.0e}",
        _variant(outcome, "fp16"),
        _variant(outcome, "int8"),
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"


def _variant(outcome: Outcome, precision: str) -> str:
    if precision in outcome.refused:
        return f"refused: {_refused(outcome, precision)}"
    report = outcome.variants[precision]
    figures = f"{outcome.errors[precision]:.2g}, {tolerance_used(report):.0%}"
    placement = report.precision["placement"]
    layers = f"; {placement['int8']} of {placement['layers']} layers" if placement else ""
    return f"{figures}{layers}{_kept(report)}"


def tolerance_used(report: OptimiseReport) -> float:
    """Return the largest share of a tolerance that an output uses."""
    return max(float(output["excess"]) for entry in report.parity for output in entry["outputs"])


def _kept(report: OptimiseReport) -> str:
    """Return how many nodes stay in FP32, with the two commonest reasons."""
    reasons = Counter(_plain(reason) for reason in report.precision["kept"].values())
    if not reasons:
        return ""
    texts = [f"{count} ({reason})" for reason, count in reasons.most_common(2)]
    more = reasons.total() - sum(count for _, count in reasons.most_common(2))
    return "; kept: " + ", ".join(texts + ([f"{more} more"] if more else []))


def _plain(reason: str) -> str:
    """Return a reason without the names of this model's nodes and tensors."""
    return re.sub(r"'[^']*'", "…", _SHORT.get(reason, reason)).replace("|", "\\|")


def _refused(outcome: Outcome, step: str) -> str:
    text = outcome.refused[step].replace("|", "\\|")
    return " ".join(text.removeprefix(f"{outcome.architecture.name}: ").split())


def write_table(outcomes: Sequence[Outcome]) -> None:
    """Put the tables between their marks in the page.

    Args:
        outcomes: Of all architectures, MiniLM last.
    """
    page = PAGE.read_text(encoding="utf-8")
    page = _between(page, "zoo", _HEADER + _lines(map(cells, outcomes)))
    page = _between(page, "numbers", _numbers(outcomes[:-1]) + "\n")
    write_text(PAGE, _between(page, "minilm", _SENTENCES + _lines(_sentences(outcomes[-1]))))


def _numbers(outcomes: Sequence[Outcome]) -> str:
    """Return how far they came, MiniLM left aside."""
    exported = sum(outcome.exported is not None for outcome in outcomes)
    half, integer = (sum(p in outcome.variants for outcome in outcomes) for p in ("fp16", "int8"))
    return f"Of {len(outcomes)} architectures {exported} are exported, {half} reach FP16 and {integer} INT8."


def _sentences(minilm: Outcome) -> Iterator[tuple[str, ...]]:
    if minilm.exported is None:
        raise ValueError(f"MiniLM was refused: {minilm.refused}")
    yield "ONNX in FP32", f"{1 - minilm.exported.accuracy['exported']:.1g}", "0.01"
    for precision, report in minilm.variants.items():
        limit = minilm.architecture.drops[precision]
        yield precision.upper(), f"{1 - report.accuracy['exported']:.3g}", f"{limit:g}"


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _between(page: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after
