"""Results of heavy stages, kept by what they depend on, in a folder or a bucket that builds share.

A result is found in two steps. The *key* is what a stage knows beforehand: its part of the spec, tool
versions, the files that the spec names. Below the key lie *manifests*, each a list of project files that
a run with this key has read. The bytes of those files as they are now, with the key, name the *result*.
The packages that those files import count like files, by their versions::

    v1/manifests/STAGE/KEY/MANIFEST.json    names of project files
    v1/results/STAGE/RESULT.json            the stage's report, and the SHA-256 of each of its files
    v1/objects/SHA256                       the bytes of a file

Everything is written whole, files before the result that names them, so an interrupted writer leaves
nothing that a reader would take, and several writers are safe: equal names have equal content. What is
read is verified against its SHA-256 before it is used.
"""

from __future__ import annotations

import functools
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from triton_toolkit._files import canonical_json, hash_tree, sha256_bytes, sha256_file
from triton_toolkit._progress import Progress, Silent
from triton_toolkit.build.packages import only_files, package_state
from triton_toolkit.build.stores import LocalStore, Store, StoreProblem, open_store
from triton_toolkit.repository.passport import MISSING

FORMAT = "v1"
"""Version of the layout; another one lies beside it and is not read."""

_MAKERS = ("build", "core", "export", "optimise", "repository")
"""The parts of this package that have a hand in a result."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The project files that a stage reads.

    ``current`` says that a run is known which found all of them as they are now. Otherwise there may be
    others: a file that has changed since may import what it did not import then.
    """

    names: frozenset[str]
    current: bool


class StageCache:
    """A cache of stage results.

    A cache that cannot be read or written is told of once and then left alone: the stages run as without
    one. A damaged entry is told of and taken for none.

    Args:
        location: A folder, or ``s3://BUCKET/PREFIX``.
        root: The project's folder; dependencies are relative to it.
        progress: Where it is told.
        refresh: Find nothing, so that everything is made and kept anew.

    Raises:
        UsageError: The location is a URL of another scheme, or holds credentials.
        MissingDependencyError: The extra s3 is not installed.
    """

    def __init__(
        self,
        location: str | Path,
        root: Path,
        *,
        progress: Progress | None = None,
        refresh: bool = False,
    ) -> None:
        self._root = root
        self._progress = progress or Silent()
        self._refresh = refresh
        self._entries: _Entries | None = _Entries(open_store(location))

    @property
    def folder(self) -> Path | None:
        """The folder that holds it; None for a bucket, and for a cache that could not be used."""
        store = self._entries.store if self._entries else None
        return store.folder if isinstance(store, LocalStore) else None

    def fetch(self, stage: str, key: Mapping[str, str], into: Path) -> dict[str, Any] | None:
        """Put the files of an earlier run into ``into`` and return its report; None where there is none.

        Args:
            stage: Name of the stage.
            key: What the stage knows beforehand that it depends on: part -> value or SHA-256.
            into: An existing folder; as it was where None is returned.
        """
        if self._entries is None or self._refresh:
            return None
        try:
            for result in self._results(self._entries, stage, key):
                report = self._take(self._entries, result.name, into)
                if report is not None:
                    return report
        except StoreProblem as exc:
            self._give_up("read", exc)
        return None

    def has(self, stage: str, key: Mapping[str, str], dependencies: Mapping[str, str]) -> bool:
        """Say whether ``store`` has kept a result of these; True as well where the cache cannot be used."""
        if self._entries is None:
            return True
        try:
            return self._entries.store.size(_result_name(stage, key, dependencies)) is not None
        except StoreProblem as exc:
            self._give_up("read", exc)
        return True

    def store(
        self,
        stage: str,
        key: Mapping[str, str],
        dependencies: Mapping[str, str],
        folder: Path,
        report: Mapping[str, Any],
    ) -> None:
        """Keep what a run has made.

        Args:
            stage: Name of the stage.
            key: As for ``fetch``.
            dependencies: The project files that the run has read -> the SHA-256 of what it has read, and
                the packages that they import, as ``package NAME`` -> version.
            folder: What it has made; every file in it is kept.
            report: JSON values. It goes wherever the cache is shared: no secret may be in it.
        """
        if self._entries is None:
            return
        body = {"stage": stage, "key": dict(key), "dependencies": dict(dependencies), "report": report}
        names = sorted(dependencies)
        manifest = f"{_manifest_folder(stage, key)}/{_hash(names)}.json"
        try:
            files = self._entries.write_tree(folder)
            self._entries.write_json(_result_name(stage, key, dependencies), {**body, "files": files})
            self._entries.write_json(manifest, {"dependencies": names})
            self._entries.store.prune()
        except StoreProblem as exc:
            self._give_up("write", exc)

    def dependencies(self, stage: str, key: Mapping[str, str]) -> Reads | None:
        """Return the project files that runs with this key have read; None where there was none."""
        if self._entries is None:
            return None
        seen: frozenset[str] | None = None
        try:
            for result in self._results(self._entries, stage, key):
                if self._entries.store.size(result.name) is not None:
                    return Reads(only_files(result.dependencies), current=True)
                seen = (seen or frozenset()) | only_files(result.dependencies)
        except StoreProblem as exc:
            self._give_up("read", exc)
        return None if seen is None else Reads(seen, current=False)

    def _results(self, entries: _Entries, stage: str, key: Mapping[str, str]) -> Iterator[_Result]:
        """Yield the results that there may be for the project's files as they are."""
        hashes: dict[str, str] = {}
        for path in entries.store.names(_manifest_folder(stage, key)):
            try:
                body = entries.read_json(path)
            except DamagedError as exc:
                self._progress.note("cache", f"{exc}, and not used")
                continue
            names = [name for name in body["dependencies"] if _is_inside(name)] if body else []
            for name in set(names) - hashes.keys():
                hashes[name] = self._state(name)
            if body is not None:
                now = {name: hashes[name] for name in names}
                yield _Result(_result_name(stage, key, now), now)

    def _state(self, name: str) -> str:
        """Return what stands for a dependency as it is now: a version or a SHA-256."""
        version = package_state(name)
        if version is not None:
            return version
        file = self._root / name
        return sha256_file(file) if file.is_file() else MISSING

    def _take(self, entries: _Entries, result: str, into: Path) -> dict[str, Any] | None:
        try:
            body = entries.read_json(result)
            if body is None or not entries.read_tree(body["files"], into):
                return None
        except DamagedError as exc:
            self._progress.note("cache", f"{exc}; it is made again")
            return None
        report: dict[str, Any] = body["report"]
        return report

    def _give_up(self, doing: str, problem: StoreProblem) -> None:
        if self._entries is not None:
            text = f"cannot {doing} {self._entries.store.shown}: {problem}; building without it"
            self._progress.note("cache", text)
        self._entries = None


@dataclass(frozen=True, slots=True)
class _Result:
    """The name of a result, and the files that it depends on with their SHA-256."""

    name: str
    dependencies: dict[str, str]


class DamagedError(Exception):
    """An entry of the cache is not what was written; says which."""


class _Entries:
    """Checked reading and writing of the three kinds of entries."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._damaged: set[str] = set()
        """Objects that may be there and wrong: to be written again."""

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the body of a manifest or result, None where there is none."""
        data = self.store.read(name)
        if data is None:
            return None
        try:
            value = json.loads(data)
            body: dict[str, Any] = value["body"]
            intact = value["sha256"] == _hash(body)
        except (ValueError, KeyError, TypeError) as exc:
            raise DamagedError(f"{name} is damaged") from exc
        if not intact:
            raise DamagedError(f"{name} is damaged")
        return body

    def write_json(self, name: str, body: Mapping[str, Any]) -> None:
        """Write a manifest or result with its own hash."""
        plain = json.loads(canonical_json(body))  # as it will be read: text keys, no tuples
        self.store.write(name, json.dumps({"sha256": _hash(plain), "body": plain}).encode())

    def read_tree(self, files: Mapping[str, str], into: Path) -> bool:
        """Put files into a folder once all are there and right; False where one has been cleared away."""
        scratch = Path(tempfile.mkdtemp(prefix=".tt-fetch-", dir=into))
        try:
            for name, sha in files.items():
                if not _is_inside(name):  # whoever can write to the cache must not write elsewhere
                    raise DamagedError(f"a result that names the file {name!r} is damaged")
                if not self._read_object(sha, scratch / name):
                    return False
            for name in files:
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).replace(into / name)
        except DamagedError:
            self._damaged.update(files.values())  # the rest has not been looked at
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return True

    def write_tree(self, folder: Path) -> dict[str, str]:
        """Write every file below a folder that is not there yet; return name -> SHA-256."""
        files = hash_tree(folder)
        for name, sha in files.items():
            path = folder / name
            if sha in self._damaged or self.store.size(_object_name(sha)) != path.stat().st_size:
                self.store.write_file(_object_name(sha), path)
                self._damaged.discard(sha)
        return files

    def _read_object(self, sha: str, target: Path) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self.store.read_file(_object_name(sha), target):
            return False
        if sha256_file(target) != sha:
            raise DamagedError(f"{_object_name(sha)} is damaged")
        return True


def _hash(value: Any) -> str:
    return sha256_bytes(canonical_json(value).encode())


def _key_hash(stage: str, key: Mapping[str, str]) -> str:
    """Return the hash of a key and of what every result depends on: our code, Python, the processor's kind.

    The code and not its version: between two releases both change a stage and keep the number.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _hash([stage, _code_hash(), python, sys.platform, platform.machine(), dict(key)])


@functools.cache
def _code_hash() -> str:
    package = Path(__file__).resolve().parents[1]
    files = sorted(path for part in _MAKERS for path in (package / part).rglob("*.py"))
    return _hash({path.relative_to(package).as_posix(): sha256_file(path) for path in files})


def _manifest_folder(stage: str, key: Mapping[str, str]) -> str:
    return f"{FORMAT}/manifests/{stage}/{_key_hash(stage, key)}"


def _result_name(stage: str, key: Mapping[str, str], dependencies: Mapping[str, str]) -> str:
    return f"{FORMAT}/results/{stage}/{_hash([_key_hash(stage, key), dict(dependencies)])}.json"


def _object_name(sha: str) -> str:
    return f"{FORMAT}/objects/{sha}"


def _is_inside(name: str) -> bool:
    """Say whether a relative path stays below its folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
