import pytest

from triton_toolkit.client.endpoint import parse_url
from triton_toolkit.core.addresses import model_path
from triton_toolkit.errors import UsageError


@pytest.mark.parametrize(
    ("url", "is_grpc", "tls", "address", "base_path"),
    [
        ("grpc://gpu-1:8001", True, False, "gpu-1:8001", ""),
        ("grpcs://gpu-1:443", True, True, "gpu-1:443", ""),
        ("http://127.0.0.1:8000", False, False, "127.0.0.1:8000", ""),
        ("https://host:8443/triton/", False, True, "host:8443", "/triton"),
        ("grpc://[::1]:8001", True, False, "[::1]:8001", ""),
    ],
)
def test_url_is_taken_apart(url, is_grpc, tls, address, base_path):
    endpoint = parse_url(url)
    assert (endpoint.is_grpc, endpoint.tls, endpoint.address) == (is_grpc, tls, address)
    assert endpoint.base_path == base_path


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("127.0.0.1:8001", "has no scheme"),
        ("ftp://host:1", "has no scheme"),
        ("", "has no scheme"),
        ("grpc://:8001", "has no host"),
        ("grpc://host", "has no port"),
        ("grpc://host:0", "has no port"),
        ("grpc://host:99999", "out of range"),
        ("grpc://host:8001/models", "after the port"),
        ("http://host:8000/?x=1", "after the port"),
    ],
)
def test_unusable_url_says_what_is_wrong_and_shows_a_right_one(url, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        parse_url(url)
    assert "grpc://HOST:8001" in caught.value.hint


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        parse_url("http://me:secret@host:8000")
    assert "secret" not in caught.value.message + caught.value.hint


def test_model_s_path_has_its_name_as_it_is():
    assert model_path("a+b") == "/models/a+b"
    assert model_path("a%2Bb", "3") == "/models/a%2Bb/versions/3"


@pytest.mark.parametrize("name", ["a b", "a?b", "a#b", "a/b", "ü", "a\rb", "a\x7f"])
def test_name_that_http_cannot_carry_unescaped_is_refused(name):
    with pytest.raises(UsageError, match="cannot be named over HTTP") as caught:
        model_path(name)
    assert "grpc://" in caught.value.hint
