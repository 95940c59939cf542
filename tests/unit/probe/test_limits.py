"""Requests that could be neither made nor sent are refused before any of it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.errors import UsageError
from triton_toolkit.probe.limits import check_request_size

Make = Callable[..., Any]
GIB = 1 << 30


@pytest.fixture
def model(live_model: Make, tensor: Make, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model on a machine of 64 GiB, whatever this one has."""
    monkeypatch.setattr("triton_toolkit._machine._memory_bytes", lambda: 64 * GIB)
    return live_model(
        inputs=(tensor("x", "fp32", "batch", "x_1", "x_2"), tensor("text", "string", "batch", "text_1"))
    )


def test_shape_beyond_all_memory_is_refused_and_says_what_to_write(model: Any) -> None:
    with pytest.raises(UsageError) as caught:
        check_request_size(model, {"x": (1, 999_999_999, 99_999)}, 1)
    message = caught.value.message
    assert "would take 363.8 TiB, more than the 2.0 GiB that a gRPC message can hold" in message
    assert message.endswith("most of it is input 'x': fp32 [1, 999999999, 99999]")
    assert "--shape" in caught.value.hint


@pytest.mark.parametrize(
    ("shapes", "rows", "fits"),
    [
        ({"x": (1, 1, 2**29 - 1)}, 1, True),
        ({"x": (1, 1, 2**29)}, 1, False),
        ({"x": (1, 1, 2**22)}, 127, True),
        ({"x": (1, 1, 2**22)}, 128, False),
        ({"x": (1, 1, 2**28), "text": (1, 10_000_000)}, 1, True),
        ({"x": (1, 1, 2**28), "text": (1, 20_000_000)}, 1, False),
    ],
)
def test_the_limit_is_a_grpc_message_of_all_inputs_and_rows(
    model: Any, shapes: dict[str, tuple[int, ...]], rows: int, fits: bool
) -> None:
    if fits:
        check_request_size(model, shapes, rows)
    else:
        with pytest.raises(UsageError, match="gRPC message"):
            check_request_size(model, shapes, rows)


def test_small_machine_has_a_smaller_limit(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_toolkit._machine._memory_bytes", lambda: 4 * GIB)
    check_request_size(model, {"x": (1, 1, 2**27)}, 1)
    with pytest.raises(UsageError, match=r"this machine has 4\.0 GiB of memory.* x 2 rows"):
        check_request_size(model, {"x": (1, 1, 2**26 + 1)}, 2)
