"""Headers that gRPC or HTTP could not carry are told before anything is sent."""

from __future__ import annotations

import pytest

from triton_toolkit.client.headers import check_headers
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.errors import UsageError


def test_usual_headers_are_sent():
    check_headers({"Authorization": "Bearer a.b+c/d==", "x-tenant_1.a": "", "X": " a\\ ~", "Host": "b"})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("", "1", "name"),
        ("a b", "1", "name"),
        ("a:b", "1", "name"),
        ("\u00fc", "1", "name"),
        ("a\r\nb", "1", "name"),
        ("x", "s3cret \u00e9", "value"),
        ("x", "s3cret\n", "value"),
        ("x", "s3cret\r\nevil: 1", "value"),
        ("x", "s3cret\t", "value"),
        ("content-LENGTH", "5", "is one"),
        ("grpc-timeout", "1S", "is one"),
        ("trace-bin", "aGk", "is one"),
    ],
)
@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_header_that_cannot_be_sent_is_refused_and_its_value_not_repeated(scheme, name, value, problem):
    with pytest.raises(UsageError, match=f"{problem} that cannot be sent") as caught:
        TritonClient(f"{scheme}://127.0.0.1:1", headers={name: value})
    assert "s3cret" not in caught.value.message + caught.value.hint
