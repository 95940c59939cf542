import http

import grpc
import pytest

from triton_toolkit.client.errors import (
    HTTP_STATUS,
    STATUS_ERRORS,
    Call,
    TransportFailure,
    http_status,
    to_error,
)
from triton_toolkit.errors import RefusedError, ServerError, ServerTimeoutError

_CALL = Call(url="grpc://host:8001", doing="load model 'm'", timeout_s=2.5)


def _error(status: str, text: str = "the server's words", *, answered: bool | None = True):
    return to_error(TransportFailure(status, text, answered=answered), _CALL)


def test_table_has_every_status_of_grpc_but_ok():
    assert set(STATUS_ERRORS) == {code.name for code in grpc.StatusCode} - {"OK"}


def test_http_statuses_map_to_known_ones():
    assert set(HTTP_STATUS.values()) <= set(STATUS_ERRORS)
    assert {http_status(code) for code in range(400, 600)} <= set(STATUS_ERRORS)


@pytest.mark.parametrize("status", STATUS_ERRORS)
def test_error_names_url_call_and_the_servers_words(status):
    error = _error(status)
    assert type(error) is STATUS_ERRORS[status]
    assert error.message.startswith("grpc://host:8001: ")
    assert "load model 'm'" in error.message
    assert ("the server's words" in error.message) is (status != "DEADLINE_EXCEEDED")


@pytest.mark.parametrize(
    ("status", "answered", "expected"),
    [
        ("INVALID_ARGUMENT", True, RefusedError),
        ("UNAVAILABLE", True, RefusedError),
        ("UNAVAILABLE", False, ServerError),
        ("DEADLINE_EXCEEDED", None, ServerTimeoutError),
        ("UNAUTHENTICATED", True, ServerError),
    ],
)
def test_class_says_who_must_act(status, answered, expected):
    assert type(_error(status, answered=answered)) is expected


def test_timeout_says_how_long_was_waited():
    assert "no answer within 2.5 s" in _error("DEADLINE_EXCEEDED").message


def test_wrong_control_mode_is_a_server_error_with_the_flag():
    error = _error("UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled")
    assert type(error) is ServerError
    assert error.hint == "start the server with --model-control-mode=explicit"


def test_restricted_api_hints_at_auth():
    error = _error("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-key'")
    assert type(error) is ServerError
    assert "`auth`" in error.hint


def test_traceback_of_the_server_goes_to_the_detail():
    error = _error("INTERNAL", "load failed: boom\n\nAt:\n  model.py(5): initialize\n;\n")
    assert error.message.endswith("load failed: boom")
    assert error.detail.endswith("model.py(5): initialize")


def test_statuses_are_real_ones_of_http():
    assert set(HTTP_STATUS) <= {status.value for status in http.HTTPStatus}
