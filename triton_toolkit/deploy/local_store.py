"""A model repository in a folder of this host, written by renames.

Nothing that lives longer than a deployment may be a folder in it: Triton takes every folder, hidden
ones too, for a model, and a server that starts with ``--load-model=*`` ends when one of them is
none (seen with 2.51). Hence the lock and the log are files in the root, and candidates are staged
in a hidden sibling folder on the same file system. Where there can be none (the store is a mount
point, or its parent cannot be written), they are staged in the store itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triton_toolkit._files import host_errors, sha256_file, write_json, write_text
from triton_toolkit.deploy.lock import LockOwner, hold_lock, lock_owner
from triton_toolkit.deploy.permissions import why_not_replaceable
from triton_toolkit.deploy.source import BuiltModel, files_beside
from triton_toolkit.deploy.store import CANDIDATE_PREFIX, Publication
from triton_toolkit.deploy.swap import Swap
from triton_toolkit.errors import DeployError, EnvironmentProblem, RepositoryError
from triton_toolkit.repository.layout import CONFIG_NAME, model_folders, versions
from triton_toolkit.repository.passport import Passport, Samples, check_files, read_passport, read_samples

LOG_NAME = ".tt-deployments.jsonl"

_FINAL_CONFIG = f"tt-publish/{CONFIG_NAME}"  # the config under the model's own name, in a candidate's folder
_JOURNAL = "tt-publish/journal.json"
_REPLACED = "tt-replaced"
_MIN_STEP_NS = 1_000_000


class LocalStore:
    """The ``Store`` of a local folder; see the module for where things lie."""

    def __init__(self, root: Path, *, url: str = "") -> None:
        self.root = root.resolve()  # staging lies beside the folder itself, not beside a link to it
        self._start = _start_hint(root, url)

    @property
    def location(self) -> str:
        """The folder."""
        return str(self.root)

    def check_present(self) -> None:
        """Raise ``EnvironmentProblem`` unless it is a folder."""
        if not self.root.is_dir():
            raise EnvironmentProblem(
                f"store {self.root}: no such folder",
                hint=f"`store` is the server's model repository as seen from here: {self._start}",
            )

    def check_usable(self) -> None:
        """Raise ``EnvironmentProblem`` unless it is a folder that can be written."""
        self.check_present()
        read_only = os.statvfs(self.root).f_flag & os.ST_RDONLY
        if read_only or not os.access(self.root, os.W_OK | os.X_OK):
            raise EnvironmentProblem(
                f"store {self.root} cannot be written" + (": it is mounted read-only" if read_only else ""),
                hint="check the mount, the owner and the permissions",
            )

    def check_replaceable(self, model: str, names: Sequence[str]) -> None:
        """Raise ``EnvironmentProblem`` unless these files of a model can be replaced, and put back."""
        folder = self.root / model
        reason = why_not_replaceable(folder, names) if folder.is_dir() else ""
        if reason:
            raise EnvironmentProblem(
                f"model {model!r} cannot be replaced: {reason}",
                hint="deploy as the user to whom the store belongs, or change the permissions",
            )

    def free_bytes(self) -> int:
        """Return the bytes that this user may still write."""
        usage = os.statvfs(self.root)
        return usage.f_bavail * usage.f_frsize

    def lock(self, *, wait_s: float) -> contextlib.AbstractContextManager[LockOwner | None]:
        """Hold the lock file of the store."""
        return hold_lock(self.root, wait_s=wait_s)

    def lock_owner(self) -> LockOwner | None:
        """Return who holds the lock now."""
        return lock_owner(self.root)

    def models(self) -> list[str]:
        """Return the models, candidates left out."""
        names = [folder.name for folder in model_folders(self.root)]
        return [name for name in names if not name.startswith(CANDIDATE_PREFIX)]

    def folders(self) -> list[str]:
        """Return every folder in the root; Triton's index lists each."""
        return sorted(path.name for path in self.root.iterdir() if path.is_dir())

    @contextlib.contextmanager
    def probe(self) -> Iterator[str]:
        """Make a folder in the root, named as a candidate: were it left, the next deployment removes it."""
        folder = self.root / f"{CANDIDATE_PREFIX}{secrets.token_hex(4)}-probe"
        with host_errors(f"write {folder}"):
            folder.mkdir()
        try:
            yield folder.name
        finally:
            with contextlib.suppress(FileNotFoundError):  # a deployment that runs took it for a leftover
                folder.rmdir()

    def versions(self, model: str) -> list[int]:
        """Return a model's version numbers."""
        return versions(self.root / model)

    def config_text(self, model: str) -> str | None:
        """Return the text of ``config.pbtxt``."""
        path = self.root / model / CONFIG_NAME
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except UnicodeDecodeError as exc:
            raise RepositoryError(f"{path}: not UTF-8 text (byte {exc.start})") from exc
        except OSError as exc:
            raise RepositoryError(f"{path}: cannot be read: {exc.strerror}") from exc

    def passport(self, model: str, version: int) -> Passport | None:
        """Read a version's passport."""
        return read_passport(self.root / model / str(version))

    def samples(self, model: str, version: int) -> Samples | None:
        """Read a version's golden samples."""
        return read_samples(self.root / model / str(version))

    def damage(self, model: str, version: int, passport: Passport) -> list[str]:
        """Compare a version's files with its passport."""
        return check_files(self.root / model / str(version), passport)

    def beside(self, model: str) -> dict[str, str]:
        """Hash the files that are neither config nor version."""
        return {name: sha256_file(path) for name, path in files_beside(self.root / model).items()}

    def folder(self, model: str) -> Path:
        """Return the model's folder."""
        return self.root / model

    def staged(self, candidate: str) -> Path:
        """Return the candidate's folder in the staging folder."""
        return self._staging / candidate

    def stage(self, candidate: str, model: BuiltModel, version: int, config_text: str) -> None:
        """Copy the files, with fresh times and on disk for good, and check them against the passport.

        All that a deployment writes is written here, so that a full disk stops it here: publishing
        and its undoing are renames alone.
        """
        folder = self._staging / candidate
        with host_errors(f"write {folder}"):
            (folder / str(version)).mkdir(parents=True)
            for name, source in model.files.items():
                _copy(source, folder / str(version) / name)
            for name, source in model.beside.items():
                _copy(source, folder / name)
            write_text(folder / CONFIG_NAME, config_text)
            write_text(folder / _FINAL_CONFIG, model.config_text)
            publication = Publication(model=model.name, version=version, beside=tuple(model.beside))
            write_json(folder / _JOURNAL, asdict(publication))
        problems = check_files(folder / str(version), model.passport)
        if problems:
            raise DeployError(
                f"model {model.name!r} changed while it was copied: {'; '.join(problems)}",
                hint="is a build running? deploy again when it has ended",
            )

    def expose(self, candidate: str) -> None:
        """Rename the candidate's folder into the root."""
        self._move(self._staging / candidate, self.root / candidate)

    def hide(self, candidate: str) -> None:
        """Rename it back."""
        self._move(self.root / candidate, self._staging / candidate)

    def discard(self, candidate: str) -> None:
        """Remove the candidate's folder, staged or exposed, and the staging folder once empty."""
        for folder in {self.root / candidate, self._staging / candidate}:
            shutil.rmtree(folder, ignore_errors=True)
        if self._staging != self.root:
            with contextlib.suppress(OSError):
                self._staging.rmdir()

    def candidates(self) -> list[str]:
        """Return the candidates' names, staged and exposed."""
        found = {
            path.name for place in {self.root, self._staging} for path in place.glob(f"{CANDIDATE_PREFIX}*")
        }
        return sorted(found)

    def publication(self, candidate: str) -> Publication | None:
        """Read the candidate's journal; it is there from the end of staging until it is discarded."""
        folder = self._staging / candidate
        try:
            value = json.loads((folder / _JOURNAL).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # killed while it was staged
            return None
        return Publication(**(value | {"beside": tuple(value["beside"])}))

    def publish_version(self, candidate: str, model: str, version: int) -> None:
        """Rename the version folder into the model's folder, which is made when it is missing."""
        with host_errors(f"write {self.root / model}"):
            (self.root / model).mkdir(exist_ok=True)
            os.rename(self._staging / candidate / str(version), self.root / model / str(version))

    def publish_beside(self, candidate: str, model: str, names: Sequence[str]) -> None:
        """Rename the files in, keeping what they replace."""
        with host_errors(f"write {self.root / model}"):
            for name in names:
                self._swap(candidate, name, model, name).do()

    def publish_config(self, candidate: str, model: str) -> None:
        """Rename the config in and date it, keeping the former one."""
        with host_errors(f"write {self.root / model / CONFIG_NAME}"):
            newest_ns = self._newest_ns(model)
            self._swap(candidate, _FINAL_CONFIG, model, CONFIG_NAME).do()
            self._date(model, newest_ns)

    def retract_version(self, candidate: str, model: str, version: int) -> None:
        """Rename the version folder back, and remove the model's folder when nothing else is in it."""
        published, staged = self.root / model / str(version), self._staging / candidate / str(version)
        if published.is_dir() and not staged.exists():
            os.rename(published, staged)
        with contextlib.suppress(OSError):  # other versions are in it
            (self.root / model).rmdir()

    def retract_beside(self, candidate: str, model: str, names: Sequence[str]) -> None:
        """Rename the former files back, and new ones out."""
        for name in names:
            self._swap(candidate, name, model, name).undo()

    def retract_config(self, candidate: str, model: str) -> None:
        """Rename the former config back and date it anew; without one, rename the new one out."""
        if not (self.root / model / CONFIG_NAME).exists():
            return
        newest_ns = self._newest_ns(model)
        self._swap(candidate, _FINAL_CONFIG, model, CONFIG_NAME).undo()
        if (self.root / model / CONFIG_NAME).exists():
            self._date(model, newest_ns)

    def touch(self, model: str) -> None:
        """Date the config later than every other file."""
        with host_errors(f"write {self.root / model / CONFIG_NAME}"):
            self._date(model, self._newest_ns(model))

    def remove_version(self, model: str, version: int) -> None:
        """Rename the folder out of the server's sight, then remove it."""
        doomed = self._staging / f"{CANDIDATE_PREFIX}removed-{model}-{version}"
        with host_errors(f"remove {self.root / model / str(version)}"):
            self._staging.mkdir(exist_ok=True)
            os.rename(self.root / model / str(version), doomed)
        self.discard(doomed.name)

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of JSON in one write, and sync it."""
        line = json.dumps(entry, sort_keys=True, allow_nan=False) + "\n"
        with host_errors(f"write {self.root / LOG_NAME}"):
            handle = os.open(self.root / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
                os.fsync(handle)
            finally:
                os.close(handle)

    def read_log(self) -> list[dict[str, Any]]:
        """Read the log; a last line cut short by a full disk is left out."""
        try:
            lines = (self.root / LOG_NAME).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    @property
    def _staging(self) -> Path:
        parent = self.root.parent
        if _is_mount_point(self.root) or not os.access(parent, os.W_OK | os.X_OK):
            return self.root
        return parent / f".{self.root.name}.tt-staging"

    def _move(self, source: Path, target: Path) -> None:
        if source != target:
            with host_errors(f"write {target}"):
                os.rename(source, target)

    def _swap(self, candidate: str, staged: str, model: str, name: str) -> Swap:
        folder = self._staging / candidate
        return Swap(folder / staged, self.root / model / name, folder / _REPLACED / name)

    def _newest_ns(self, model: str) -> int:
        """Return the newest modification time below the model's folder, as Triton looks for it."""
        folder = self.root / model
        return max(path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")))

    def _date(self, model: str, newest_ns: int) -> None:
        """Date the config after ``newest_ns``, which may lie in the future when clocks differ.

        A load acts only when something is strictly newer than at the last one.
        """
        path = self.root / model / CONFIG_NAME
        time_ns = max(time.time_ns(), newest_ns + _MIN_STEP_NS)
        try:
            os.utime(path, ns=(time_ns, time_ns))
        except PermissionError:  # another user's file, which only its owner can date: a copy takes its place
            copy = path.with_name(f".{path.name}.dated")
            try:
                shutil.copy(path, copy)
                os.utime(copy, ns=(time_ns, time_ns))
                os.replace(copy, path)
            finally:
                copy.unlink(missing_ok=True)


def _start_hint(root: Path, url: str) -> str:
    """Return how to start a server on a folder that is not there, at the URL where it is expected."""
    here = Path.cwd()
    folder = shlex.quote(str(root.relative_to(here) if root.is_relative_to(here) else root))
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1") or parts.port is None:
        return f"mount it here, or `mkdir -p {folder}` and start the server on it"
    option = "--grpc-port" if parts.scheme.startswith("grpc") else "--http-port"
    return f"`mkdir -p {folder} && tt serve {folder} {option} {parts.port}` starts a server on it"


def _is_mount_point(folder: Path) -> bool:
    """Say whether renames between a folder and its siblings are refused.

    ``os.path.ismount`` compares device numbers, and a bind mount has its parent's.
    """
    if os.path.ismount(folder):
        return True
    try:
        lines = (
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
    except OSError:  # not Linux
        return False
    places = (line.split(" ")[4] for line in lines)
    return str(folder) in {place.replace("\\040", " ") for place in places}


def _copy(source: Path, target: Path) -> None:
    """Copy content and mode, not the times, and sync it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
