"""A probe's report for people: what was checked, two tables, notes, and the verdict last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from triton_toolkit.core.units import format_bytes

if TYPE_CHECKING:
    from triton_toolkit.cli._output import Console
    from triton_toolkit.probe.correctness import Correctness
    from triton_toolkit.probe.report import Histogram, ProbeReport
    from triton_toolkit.probe.server_split import Split
    from triton_toolkit.probe.stats import Estimate

_BARS = "▁▂▃▄▅▆▇█"
_SIZES_SHOWN = (4, 2, 1)
"""How many batch sizes are told, where a line is long, shorter and very short."""
_NICE, _USEFUL, _ESSENTIAL = range(3)
_PARTS = {"queue": _ESSENTIAL, "input": _USEFUL, "infer": _ESSENTIAL, "output": _USEFUL}
_SHORT = {
    "in flight:>": "n:>",
    "p99 (95 % interval):>": "p99 (95 %):>",
    "errors:>": "err:>",
    "batches formed": "batches",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table, and how much it is needed where not all fit; ``brief`` are shorter cells."""

    header: str
    cells: list[str]
    needed: int = _ESSENTIAL
    brief: list[str] | None = None

    @property
    def name(self) -> str:
        """The header without its mark of alignment."""
        return self.header.removesuffix(":>")


def show_report(console: Console, report: ProbeReport) -> None:
    """Print a report on stdout."""
    server = f"{report.server['name']} {report.server['version']}"
    console.line(f"{report.model} version {report.version} at {report.server['url']} ({server})")
    _show_checks(console, report)
    _show_latency(console, report)
    _show_server(console, report)
    _show_notes(console, report)
    _show_verdict(console, report)


def _show_checks(console: Console, report: ProbeReport) -> None:
    correctness, payload = report.correctness, report.payload
    console.line(f"  answers   {_answers(correctness)}")
    if correctness.golden:
        differences = [item for item in correctness.differences if item.ok and item.max_absolute > 0]
        worst = max(differences, key=lambda item: item.max_absolute, default=None)
        largest = (
            "" if worst is None else f", largest difference {worst.max_absolute:.2g} in {worst.output!r}"
        )
        console.line(f"  sample    {correctness.golden}{largest}")
    else:
        console.line(f"  sample    no golden sample: {correctness.missing}")
    size = format_bytes(payload["bytes"])
    console.line(
        f"  requests  {payload['distinct']} different, {payload['source']}, "
        f"batch size {payload['batch_size']}, {size} each"
    )
    cold = {True: " (first since it was loaded)", False: " (it had answered others before)", None: ""}
    cpus, load = report.machine["cpus"], report.machine["load_average"][0]
    console.line(f"  client    {cpus} CPUs, load average {load:g} before the run")
    console.line(f"  first     {report.first_request_ms:.2f} ms{cold[report.first_request_cold]}")


def _answers(correctness: Correctness) -> str:
    """Say how the answers are; where something is wrong, each check with its outcome."""
    if correctness.problems:
        checks = (f"{'passed' if check.ok else 'FAILED'}: {check.text}" for check in correctness.checks)
        return f"WRONG; {'; '.join(checks)}"
    word = "right" if correctness.golden else "consistent"
    return f"{word}: {'; '.join(check.text for check in correctness.checks)}"


def _show_latency(console: Console, report: ProbeReport) -> None:
    names = list(dict.fromkeys(name for run in report.runs for name in run.latency_ms))
    extra = [name for name in names if name not in ("p50", "p90", "p95", "p99")]
    columns = [
        _Column("in flight:>", [str(run.concurrency) for run in report.runs]),
        _Column("inf/s:>", [_number(run.throughput.value) for run in report.runs]),
        _percentile(report, "p50"),
        _percentile(report, "p90", needed=_USEFUL),
        _percentile(report, "p95", needed=_USEFUL),
        _Column(
            "p99 (95 % interval):>",
            [_with_interval(run.latency_ms.get("p99")) for run in report.runs],
            brief=[_value(run.latency_ms.get("p99")) for run in report.runs],
        ),
        *(_percentile(report, name) for name in extra),
        _Column("errors:>", [str(run.failed or "-") for run in report.runs]),
        _Column(_axis(report), [_bars(run.histogram) for run in report.runs], needed=_NICE),
    ]
    lengths = " and ".join(dict.fromkeys(f"{run.duration_s:g} s" for run in report.runs))
    warmup_s = report.runs[0].warmup_s
    title = f"Latency in ms at the client, {lengths} a step after {warmup_s:g} s warm-up"
    _show_table(console, columns, title)


def _percentile(report: ProbeReport, name: str, needed: int = _ESSENTIAL) -> _Column:
    return _Column(f"{name}:>", [_value(run.latency_ms.get(name)) for run in report.runs], needed)


def _show_table(console: Console, columns: Sequence[_Column], title: str) -> None:
    """Print a table that fits the line; where no form of it does, each row as a list of its figures."""
    shown = _fitting(columns, console.width)
    rows = list(zip(*(column.cells for column in shown), strict=True))
    if _table_width(shown) <= console.width:
        console.table([column.header for column in shown], rows, title=title)
        return
    console.line()
    console.line(title)
    for row in rows:
        figures = [f"{column.name} {cell}" for column, cell in zip(shown, row, strict=True) if cell]
        for line in _lines(figures, console.width - 2):
            console.line(f"  {line}")


def _lines(words: Sequence[str], width: int) -> list[str]:
    """Return words two spaces apart on lines of this width; a longer word has a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def _fitting(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Return the columns that a line holds: the less needed go first, then headers and cells get short."""
    shown = list(columns)
    for keep in (_USEFUL, _ESSENTIAL):
        if _table_width(shown) > width:
            shown = [column for column in shown if column.needed >= keep]
    if _table_width(shown) > width:
        shown = [replace(column, header=_SHORT.get(column.header, column.header)) for column in shown]
    if _table_width(shown) > width:
        shown = [replace(c, header=f"{c.name.split()[0]}:>", cells=c.brief) if c.brief else c for c in shown]
    return shown


def _table_width(columns: Sequence[_Column]) -> int:
    gaps = 3 * (len(columns) - 1) + 2  # as rich draws a table without edges
    return sum(max(map(len, (column.name, *column.cells))) for column in columns) + gaps


def _show_server(console: Console, report: ProbeReport) -> None:
    splits: list[tuple[str, str, Split]] = []
    for run in report.runs:
        if run.split is not None:
            splits.append((str(run.concurrency), "", run.split))
            splits += [("", name, step) for name, step in run.split.steps.items()]
    if not splits:
        return
    columns = [_Column("in flight:>", [flight for flight, _, _ in splits])]
    if any(step for _, step, _ in splits):
        columns.append(_Column("step", [step for _, step, _ in splits]))
    means = [list(split.us.values()) for _, _, split in splits]
    for index, (name, needed) in enumerate(_PARTS.items()):
        columns.append(_Column(f"{name}:>", [_rounded(row[index]) for row in means], needed))
    for sizes in _SIZES_SHOWN:
        formed = _Column("batches formed", [_sizes(split.batch_sizes, sizes) for _, _, split in splits])
        if _table_width([*columns, formed]) <= console.width:
            break
    title = "In the server, mean in us a request; batch size x executions"
    _show_table(console, [*columns, formed], title)


def _rounded(mean_us: float | None) -> str:
    return "-" if mean_us is None else f"{mean_us:.0f}"


def _show_notes(console: Console, report: ProbeReport) -> None:
    for run in report.runs:
        notes = [*run.notes]
        if run.why_not_larger:
            notes.append(f"batches: {run.why_not_larger}")
        for note in notes:
            console.line(f"  {run.concurrency} in flight: {note}")


def _show_verdict(console: Console, report: ProbeReport) -> None:
    verdict = report.verdict
    console.line()
    for item in verdict.judgements:
        console.line(f"  {item.outcome:<12}  {item.reason}")
    explained = {item.reason for item in verdict.judgements}
    rest = [reason for reason in verdict.reasons if reason not in explained]
    for reason in rest:
        console.line(f"  {reason}")
    held = sum(item.outcome == "pass" for item in verdict.judgements)
    judged = f"; {held} of {len(verdict.judgements)} objectives hold" if verdict.judgements else ""
    answers = _answers_in_short(report)
    failed = sum(run.failed for run in report.runs)
    console.verdict(verdict.word, f"{report.model}: {answers}, {failed or 'no'} failed requests{judged}")


def _answers_in_short(report: ProbeReport) -> str:
    if report.correctness.problems or any(run.wrong for run in report.runs):
        return "wrong answers"
    if report.correctness.golden:
        return "answers right"
    return "answers consistent, not compared with a golden sample"


def _value(estimate: Estimate | None) -> str:
    return "-" if estimate is None else _number(estimate.value)


def _with_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    low = "?" if estimate.low is None else _number(estimate.low)
    high = "?" if estimate.high is None else _number(estimate.high)
    return f"{_number(estimate.value)} ({low}-{high})"


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _sizes(sizes: dict[int, int], shown: int) -> str:
    """The commonest batch sizes, in order of size."""
    common = sorted(sorted(sizes, key=lambda size: -sizes[size])[:shown])
    text = "  ".join(f"{size}x{sizes[size]}" for size in common)
    return text + (f"  +{len(sizes) - len(common)} sizes" if len(sizes) > len(common) else "")


def _axis(report: ProbeReport) -> str:
    histogram = next((run.histogram for run in report.runs if run.histogram), None)
    if histogram is None:
        return ""
    return f"{_number(histogram.low_ms)} to {_number(histogram.high_ms)} (log)"


def _bars(histogram: Histogram | None) -> str:
    if histogram is None:
        return ""
    top = max(histogram.counts)
    return "".join(" " if not n else _BARS[min(7, int(8 * (n / top) ** 0.5))] for n in histogram.counts)
