"""A project, a cache, and folders to store from and fetch into."""

from __future__ import annotations

from pathlib import Path

from triton_toolkit._files import sha256_file
from triton_toolkit.build.cache import StageCache

KEY = {"spec": "1", "tool torch": "2.13.0"}
REPORT = {"parity": [{"sizes": {"batch": 2}, "error": 1.5e-7}], "notes": []}


Fetched = tuple[dict[str, object] | None, Path]
"""The report and the folder."""


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def step(self, subject: str, text: str) -> None:
        raise AssertionError(text)

    def note(self, subject: str, text: str) -> None:
        self.texts.append(f"{subject}: {text}")


class Place:
    """A project with two source files, a cache, and folders to store from and fetch into."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir(parents=True)
        (self.root / "net.py").write_text("one")
        (self.root / "layers.py").write_text("two")
        self.cache_folder = folder / "cache"
        self.notes = Notes()
        self.cache = self.open()
        self._fetched = 0
        self._base = folder

    def open(self) -> StageCache:
        return StageCache(self.cache_folder, self.root, progress=self.notes)

    def made(self, text: str = "weights") -> Path:
        folder = self._base / "made"
        (folder / "deep").mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_text(text)
        (folder / "deep/data.bin").write_bytes(bytes(1000))
        return folder

    def hashes(self, *names: str) -> dict[str, str]:
        return {name: sha256_file(self.root / name) for name in names}

    def store(self, text: str = "weights", *, names: tuple[str, ...] = ("net.py",), **more: object) -> None:
        values = {"stage": "export", "key": KEY, "report": REPORT, **more}
        self.cache.store(dependencies=self.hashes(*names), folder=self.made(text), **values)  # type: ignore[arg-type]

    def fetch(self, stage: str = "export", key: dict[str, str] = KEY) -> Fetched:
        self._fetched += 1
        into = self._base / f"fetched-{self._fetched}"
        into.mkdir()
        return self.cache.fetch(stage, key, into), into

    def entries(self, kind: str) -> list[Path]:
        return [path for path in self.cache_folder.glob(f"v1/{kind}/**/*") if path.is_file()]
