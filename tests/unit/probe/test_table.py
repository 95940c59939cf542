"""The tables of ``tt probe`` at the widths that terminals have, from figures that are always the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.cli._output import Console
from triton_toolkit.cli._probe_table import show_report
from triton_toolkit.probe.report import ProbeReport, Verdict
from triton_toolkit.probe.server_split import PARTS
from triton_toolkit.probe.stats import Estimate

Make = Callable[..., Any]
LATENCY = {
    "p50": Estimate(value=1.21, low=1.2, high=1.22),
    "p90": Estimate(value=2.0, low=1.9, high=2.1),
    "p95": Estimate(value=3.29, low=3.2, high=3.4),
    "p99": Estimate(value=7.79, low=6.19, high=64.0),
}


@pytest.fixture
def report(run: Make, correctness: Make) -> ProbeReport:
    """Return a probe of two steps, with one and with eight requests in flight."""
    return ProbeReport(
        model="digits",
        version="1",
        server={"url": "grpc://127.0.0.1:8001", "name": "triton", "version": "2.51.0"},
        verdict=Verdict(word="pass", reasons=("answers right",)),
        runs=(run(latency_ms=LATENCY), run(concurrency=8, latency_ms=LATENCY)),
        correctness=correctness(),
        payload={"source": "golden sample", "distinct": 4, "batch_size": 1, "bytes": 256, "inputs": {}},
        first_request_ms=1.5,
        first_request_cold=False,
        machine={"cpus": 2, "load_average": [1.0, 1.0, 1.0]},
    )


@pytest.mark.parametrize("width", [100, 80, 60])
def test_tables_fit_a_terminal_on_one_line_a_row(
    report: ProbeReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("triton_toolkit.cli._output._PLAIN_WIDTH", width)
    show_report(Console(json_mode=False), report)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    rules = [i for i, line in enumerate(lines) if line.strip(" ─") == "" and "─" in line]
    assert len(rules) == 2
    for rule in rules:
        table = lines[rule - 1 : rule + 3]
        assert max(len(line) for line in table) <= width
        assert [line.split()[0] for line in table[2:]] == ["1", "8"]
    header = lines[rules[0] - 1]
    assert "p99" in header
    assert ("p90" in header) == (width >= 80)


@pytest.mark.parametrize("width", [120, 100, 80, 70, 60, 50, 40, 30])
def test_wide_figures_are_never_broken(
    report: ProbeReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """What no form of a table holds is told as a list."""
    wide = {
        name: Estimate(value=estimate.value * 40_000, low=estimate.low, high=estimate.value * 123_456)
        for name, estimate in LATENCY.items()
    }
    split = dataclasses.replace(report.runs[0].split, us=dict.fromkeys(PARTS, 87654321.0))  # type: ignore[type-var]
    runs = tuple(
        dataclasses.replace(
            run,
            concurrency=flight,
            latency_ms=wide,
            throughput=Estimate(value=1_234_567, low=1, high=2),
            errors={"internal": 123_456},
            split=split,
        )
        for run, flight in zip(report.runs, (512, 1024), strict=True)
    )
    monkeypatch.setattr("triton_toolkit.cli._output._PLAIN_WIDTH", width)
    show_report(Console(json_mode=False), dataclasses.replace(report, runs=runs))
    text = capsys.readouterr().out
    text = text[text.index("Latency in ms") : text.index("PASS")]
    for figure in ("512", "1024", "1 234 567", "48 400", "311 600", "123456", "87654321"):
        assert text.count(figure) >= 2, figure
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(len(line) for line in lines if any(figure in line for figure in ("512", "1024"))) <= width
    for index, line in enumerate(lines):
        if "─" in line:
            assert [row.split()[:1] for row in lines[index + 1 : index + 4]] == [["512"], ["1024"], []]
