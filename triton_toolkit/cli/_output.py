"""How commands print: results on stdout, progress on stderr, JSON alone when asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress, Silent

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.status import Status

_PLAIN_WIDTH = 120


class Console:
    """Prints a command's result.

    Args:
        json_mode: Whether ``--json`` was given: then only ``json`` writes to stdout.
    """

    def __init__(self, json_mode: bool) -> None:
        self.json_mode = json_mode

    @property
    def width(self) -> int:
        """Characters a line holds."""
        return self._out().width

    def json(self, value: Any) -> None:
        """Print one JSON document on stdout."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line of the result for people; nothing with ``--json``."""
        if not self.json_mode:
            self._out().print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
        """Print a table for people; nothing with ``--json``. Columns named ``…:>`` align right."""
        if self.json_mode:
            return
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for column in columns:
            name, right, _ = column.partition(":>")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        from rich.text import Text

        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._out().print(table)

    def verdict(self, word: str, text: str = "") -> None:
        """Print the last line: ``PASS``, ``FAIL`` or ``INCONCLUSIVE`` in colour on a terminal."""
        if self.json_mode:
            return
        from rich.text import Text

        colour = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
        line = Text(word.upper(), style=colour.get(word.lower(), "bold"))
        self._out().print(line.append(f"  {text}" if text else "", style="default"), soft_wrap=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Give a ``Progress`` on stderr: a spinner on a terminal, lines elsewhere, notes only in CI."""
        if sys.stderr.isatty():
            from rich.console import Console as RichConsole

            console = RichConsole(stderr=True)
            with console.status("starting") as status:
                yield _Spinner(console, status)
        elif os.environ.get("CI"):
            yield _Notes()
        else:
            yield _Lines()

    @staticmethod
    def _out() -> RichConsole:
        from rich.console import Console as RichConsole

        asked = os.environ.get("COLUMNS", "")  # rich takes it where no width is given
        known = sys.stdout.isatty() or (asked.isdecimal() and int(asked) > 0)
        return RichConsole(file=sys.stdout, width=None if known else _PLAIN_WIDTH)


class _Spinner:
    """One spinner line that changes; notes stay above it."""

    def __init__(self, console: RichConsole, status: Status) -> None:
        self._console = console
        self._status = status

    def step(self, subject: str, text: str) -> None:
        from rich.markup import escape

        self._status.update(f"[bold]{escape(subject)}[/bold] {escape(text)}")

    def note(self, subject: str, text: str) -> None:
        self._console.print(f"{subject}: {text}", markup=False, highlight=False, soft_wrap=True)


class _Notes(Silent):
    """What CI sees: notes alone."""

    def note(self, subject: str, text: str) -> None:
        print(f"{subject}: {text}", file=sys.stderr, flush=True)


class _Lines(_Notes):
    """A line a step, for logs and pipes."""

    def step(self, subject: str, text: str) -> None:
        print(f"{subject}: {text}", file=sys.stderr, flush=True)
