"""Puts the rows of a benchmark into its table in docs/benchmarks.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path("docs/benchmarks.md")


def write_rows(mark: str, rows: Sequence[str]) -> None:
    """Put rows in place of those of the table below ``<!-- MARK -->``; its two head lines stay."""
    document = DOCUMENT.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {re.escape(mark)} -->\n(?:\|.*\n){{2}})(?:\|.*\n)*")
    if not pattern.search(document):
        sys.exit(f"{DOCUMENT} has no table marked <!-- {mark} -->")
    text = "".join(f"{row}\n" for row in rows)
    DOCUMENT.write_text(pattern.sub(lambda match: match[1] + text, document), encoding="utf-8")
