"""Fixtures for all tests: a clean environment, and embedded servers shared by a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from triton_toolkit.errors import MissingDependencyError
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

_OURS = ("TT_", "TRITON_TOOLKIT_")
_HOSTS = {"CI", "CUDA_VISIBLE_DEVICES", "NO_COLOR", "FORCE_COLOR", "COLUMNS"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the server's tests, and say why, where the embedded server cannot run."""
    try:
        check_available()
    except MissingDependencyError as exc:
        skip = pytest.mark.skip(reason=str(exc))
        for item in items:
            if item.get_closest_marker("server"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees, or writes to, what the user's environment points to."""
    for name in list(os.environ):
        if name.startswith(_OURS) or name in _HOSTS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start embedded servers that live as long as the session: ``embedded_server(repository, load=…)``.

    The same repository and options give the same server, so tests in several files share one. A test
    that must end its server uses ``with EmbeddedServer(ServeOptions(...))`` itself.
    """
    with ExitStack() as stack:
        started: dict[ServeOptions, EmbeddedServer] = {}

        def start(repository: Path, **options: Any) -> EmbeddedServer:
            # Nobody waits for models that end in good order when all tests are done.
            wanted = ServeOptions(repository=repository, **{"exit_timeout_s": 0, **options})
            if wanted not in started:
                started[wanted] = stack.enter_context(EmbeddedServer(wanted))
            return started[wanted]

        yield start
