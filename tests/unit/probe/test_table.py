"""The tables of ``tt probe`` at the widths that terminals have, from figures that are always the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.cli._output import Console
from triton_toolkit.cli._probe_table import show_report
from triton_toolkit.probe.report import ProbeReport, Verdict
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
