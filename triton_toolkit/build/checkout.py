"""What differs between a git commit and the files as they are now: committed, staged, edited, untracked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from triton_toolkit.errors import EnvironmentProblem, UsageError

_REGULAR = ("100644", "100755")
"""Modes of files in git; a link or a submodule tells nothing about the bytes behind it."""


class Checkout:
    """A folder of a git checkout beside one of its commits. Paths are relative to the folder, with ``/``.

    Args:
        root: The folder.
        ref: A branch, tag or commit, such as ``origin/main``.

    Raises:
        UsageError: There is no such commit.
        EnvironmentProblem: git is not installed or refuses, the folder is in no checkout, or the commit
            is not in a shallow clone.
    """

    def __init__(self, root: Path, ref: str) -> None:
        self._root = root
        self.ref = ref
        _run_git(root, "rev-parse", "--show-toplevel")
        commit = self._commit(ref)
        self._blobs = dict(self._tree(commit))
        diff = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--relative", commit, "--", ".")
        self._differing = {os.fsdecode(name) for name in _run_git(root, *diff).split(b"\0") if name}

    def differs(self, name: str) -> bool:
        """Say whether a file has other bytes than in the commit, or is not in it, or may be (a link).

        One that is neither in the commit nor there does not differ: a build may depend on its absence.
        """
        if name in self._blobs:
            return name in self._differing
        return name in self._differing or os.path.lexists(self._root / name)

    def differing_below(self, folder: str) -> str | None:
        """Return a file below a folder that differs, was added or was removed; None without any.

        Hidden files and compiled modules do not count: they are not taken along.
        """
        start = "" if folder in ("", ".") else folder.rstrip("/") + "/"
        there = {path.relative_to(self._root).as_posix() for path in self._files(self._root / folder)}
        gone = {name for name in self._differing if name.startswith(start)}
        for name in sorted(there | gone):
            parts = name.removeprefix(start).split("/")
            if not any(part.startswith(".") or part == "__pycache__" for part in parts) and self.differs(
                name
            ):
                return name
        return None

    def names(self) -> list[str]:
        """Return the files that the commit has below the folder."""
        return list(self._blobs)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return files' bytes as they are in the commit."""
        wanted = list(names)
        asked = "".join(f"{self._blobs[name]}\n" for name in wanted).encode()
        answer = _run_git(self._root, "cat-file", "--batch", given=asked)
        found = {}
        for name in wanted:
            head, _, answer = answer.partition(b"\n")  # SHA, type, size
            size = int(head.split()[2])
            found[name], answer = answer[:size], answer[size + 1 :]
        return found

    def _commit(self, ref: str) -> str:
        if not ref or ref.startswith("-"):
            raise UsageError(f"{ref!r} is not a branch, tag or commit")
        done = _call_git(self._root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if done.returncode == 0:
            return done.stdout.decode().strip()
        if _run_git(self._root, "rev-parse", "--is-shallow-repository").strip() == b"true":
            raise EnvironmentProblem(
                f"{ref} is not in this shallow clone, so it cannot be told what changed since",
                hint="fetch it: `git fetch origin` for a whole branch, `fetch-depth: 0` in actions/checkout",
            )
        raise UsageError(
            f"git knows no {ref!r}", hint="name a branch, tag or commit of this checkout, such as origin/main"
        )

    def _tree(self, commit: str) -> Iterable[tuple[str, str]]:
        for entry in _run_git(self._root, "ls-tree", "-r", "-z", commit).split(b"\0"):
            head, _, name = entry.partition(b"\t")
            if name:
                mode, _, sha = head.decode().split(" ")
                if mode in _REGULAR:
                    yield os.fsdecode(name), sha

    @staticmethod
    def _files(folder: Path) -> Iterable[Path]:
        for top, _, names in os.walk(folder, followlinks=True):
            yield from (Path(top, name) for name in names)


def _run_git(root: Path, *words: str, given: bytes | None = None) -> bytes:
    done = _call_git(root, *words, given=given)
    if done.returncode != 0:
        said = (
            done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {done.returncode}"
        )
        if "not a git repository" in said:
            raise EnvironmentProblem(
                f"{root} is not in a git checkout, so it cannot be told what changed",
                hint="build without --changed-since: what has not changed is not built again anyway",
            )
        raise EnvironmentProblem(f"git {words[0]} failed in {root}: {said}", hint="run it there by hand")
    return done.stdout


def _call_git(root: Path, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    git = shutil.which("git")
    if git is None:
        raise EnvironmentProblem("git is not installed", hint="install it, or build everything")
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(
        [git, *words], cwd=root, env=environment, input=given or b"", capture_output=True, check=False
    )
