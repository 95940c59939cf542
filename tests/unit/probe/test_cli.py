"""`tt probe` without a Triton: wrong usage, and servers that are down or hang."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from triton_toolkit.cli import cli


@pytest.fixture(autouse=True)
def no_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        return int(unused.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield int(listener.getsockname()[1])


def probe(*options: str) -> Result:
    return CliRunner().invoke(cli, ["probe", "digits", *options])


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_is_down_is_3(closed_port: int, scheme: str) -> None:
    result = probe("--url", f"{scheme}://127.0.0.1:{closed_port}")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_hangs_is_3_within_the_deadline(silent_port: int, scheme: str) -> None:
    result = probe("--url", f"{scheme}://127.0.0.1:{silent_port}", "--timeout", "0.2s", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"] == "ServerTimeoutError"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slo", "p99<20"], "needs a unit of time"),
        (["--slo", "p99 is low"], "is not METRIC OPERATOR LIMIT"),
        (["--slo", "latency<5ms"], "unknown metric 'latency'"),
        (["--slo", "p99=5ms"], "never exactly equal"),
        (["--duration", "5"], "needs a unit of time"),
        (["--duration", "0s"], "must be longer than 0"),
        (["--timeout", "-1s"], "is not between 0 and a day"),
        (["--concurrency", "1,x"], "'x' is not a whole number"),
        (["--concurrency", "0"], "'0' is not a whole number of at least 1"),
        (["--concurrency", "5000"], "concurrency 5000 is not between 1 and 1024"),
        (["--shape", "image"], "'image' is not of the form image:1,3,224,224"),
        (["--dim", "seq"], "'seq' is not of the form seq=128"),
        (["--dim", "seq=0"], "'0' is not a whole number of at least 1"),
        (["--header", "secret"], "a header is NAME:VALUE"),
        (["--header", "a:b\r\nc:d"], "a header is NAME:VALUE"),
        (["--header", "x:caf\u00e9"], "header 'x' has a value that cannot be sent"),
        (["--header", "\u00fc:1"], "header '\u00fc' has a name that cannot be sent"),
        (["--header", "a b:1"], "header 'a b' has a name that cannot be sent"),
        (
            ["--url", "http://gpu:8000", "--header", "x:caf\u00e9"],
            "header 'x' has a value that cannot be sent",
        ),
        (["--url", "gpu:8001"], "has no scheme"),
        (["--spec", "missing.yaml"], "missing.yaml"),
    ],
)
def test_wrong_usage_is_2(options: list[str], words: str) -> None:
    result = probe(*options)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stdout == ""


def test_header_s_value_is_not_repeated_in_the_error() -> None:
    assert "s3cret" not in probe("--header", "s3cret").output


def test_help_lists_exit_codes_and_examples() -> None:
    text = CliRunner().invoke(cli, ["probe", "--help"]).stdout
    assert "Examples:" in text
    assert "4 inconclusive" in text
