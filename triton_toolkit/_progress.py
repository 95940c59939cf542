"""How a long stage tells what it is doing, without printing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of a long operation; the command line shows them."""

    def step(self, subject: str, text: str) -> None:
        """A step began: ``subject`` is a model or a server, ``text`` what is done to it."""

    def note(self, subject: str, text: str) -> None:
        """Something worth knowing happened; stays visible, unlike a step."""


class Silent:
    """Progress that nobody watches."""

    def step(self, subject: str, text: str) -> None:
        """Ignore it."""

    def note(self, subject: str, text: str) -> None:
        """Ignore it."""
