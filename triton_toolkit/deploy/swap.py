"""One file that takes another's place, and back."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Swap:
    """A staged file that takes a published one's place, and back: renames alone, no space needed.

    That the staged file is gone tells that the swap was done, so undoing needs no memory.
    """

    staged: Path
    published: Path
    former: Path

    def do(self) -> None:
        """Put the staged file in, keeping the former one."""
        if self.published.exists():
            self.former.parent.mkdir(parents=True, exist_ok=True)
            _link(self.published, self.former)
        self.published.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.staged, self.published)

    def undo(self) -> None:
        """Put the former file back, or take the new one out where there was none."""
        if self.staged.exists():
            return
        if self.former.exists():
            # The former file stays where it is kept until the candidate is discarded: undone twice, by a
            # rollback that was killed and by the next deployment, this must not take it for the new one.
            again = self.former.with_name(f".{self.former.name}.again")
            again.unlink(missing_ok=True)
            _link(self.former, again)
            os.replace(again, self.published)
            return
        os.replace(self.published, self.staged)
        with contextlib.suppress(OSError):  # holds more
            self.published.parent.rmdir()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:  # a former attempt got as far as this
        return
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
