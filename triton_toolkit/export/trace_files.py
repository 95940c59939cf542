"""Which files of the project the user's code reads: they decide when a build is stale.

Two sources: an audit hook that sees every open() of Python, and the modules that are loaded in
the end (a module read from its ``.pyc`` never opens the ``.py``). Files that native code opens
itself are not seen; the spec's ``hashed`` names those.

A file that was asked for and is not there counts too, since the code would do something else with
it: an open() that fails, and an import of a project's own source that finds nothing. What is only
asked about (``exists()``, a listed folder) raises no event and is not seen.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from urllib.parse import unquote

_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__", "site-packages", "node_modules"})
_PACKAGE = Path(__file__).resolve().parents[1]

NATIVE_READERS = frozenset({"safetensors", "h5py", "tokenizers", "sentencepiece"})
"""Packages that open files in native code, where no audit hook sees it."""

_READERS_OF_TT = frozenset({"onnxruntime"})
"""Likewise, but tt loads them too: they count where a file of the project imports them."""

_CALLS_OF_TORCH = frozenset(
    {"torch.from_file", "torch.UntypedStorage.from_file", "torch.FloatStorage.from_file"}
)

_MARK = "/missing/"
"""Before the name of a file that was not there; a relative path never begins with a slash."""

_MOST_MISSING = 200
"""Names of missing files that are kept, so that code which tries countless names makes no flood."""

_STARTS_PROGRAM = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn"})


def missing_name(name: str) -> str:
    """Return how a list of dependencies names a project file that was asked for and was not there."""
    return _MARK + name


def split_missing(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the plain names of the files that were there, and of those that were missing."""
    every = set(names)
    missing = {name for name in every if name.startswith(_MARK)}
    return every - missing, {name.removeprefix(_MARK) for name in missing}


class ProjectFiles:
    """Decides which paths are the project's own: below its root, and not made by tools.

    Version control, caches, virtual environments, the folders in ``ignored`` and this package
    itself (its version is part of every cache key) are not.
    """

    def __init__(self, root: Path, ignored: Sequence[str] = ()) -> None:
        self.root = root.resolve()
        self.ignored = tuple(ignored)
        self._ignored = [self.root / name for name in ignored]
        self._environments: dict[Path, bool] = {}

    def relative(self, path: str | os.PathLike[str]) -> str | None:
        """Return the path relative to the root with ``/``, None where it is not the project's."""
        absolute = Path(os.path.abspath(path))
        if not absolute.is_relative_to(self.root):
            absolute = Path(os.path.realpath(path))
        if not absolute.is_relative_to(self.root) or absolute.is_relative_to(_PACKAGE):
            return None
        if any(absolute.is_relative_to(folder) for folder in self._ignored):
            return None
        inner = absolute.relative_to(self.root)
        if _SKIPPED_FOLDERS.intersection(inner.parts) or self._in_environment(absolute):
            return None
        return inner.as_posix()

    def _in_environment(self, path: Path) -> bool:
        """Say whether a folder between the root and ``path`` is a virtual environment."""
        for folder in path.parents:
            if folder == self.root:
                return False
            if folder not in self._environments:
                self._environments[folder] = (folder / "pyvenv.cfg").is_file()
            if self._environments[folder]:
                return True
        return False


class FileTrace:
    """Records the project files that are opened for reading while it is active.

    Attributes:
        ran_programs: Whether a source of the project has started another program.
    """

    def __init__(self, files: ProjectFiles) -> None:
        self._files = files
        self._opened: set[str] = set()
        self._not_there: dict[str, None] = {}
        self._not_found: dict[str, list[str]] = {}
        self.ran_programs = False
        self._active = False
        self._hooked = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record while the block runs. Audit hooks cannot be removed, so it only falls silent."""
        if not self._hooked:
            sys.addaudithook(self._hook)
            self._hooked = True
        before, self._active = self._active, True
        last = _LastFinder(self)
        sys.meta_path.append(last)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # the source has put other finders there
                sys.meta_path.remove(last)
            self._active = before

    def dependencies(self) -> list[str]:
        """Return the files read so far and the loaded modules of the project, sorted."""
        paths = set(self._opened)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                paths.add(file)
        found = {self._files.relative(path) for path in paths if os.path.isfile(path)}
        return sorted(name for name in found if name is not None)

    def missing(self) -> list[str]:
        """Return the files that were asked for and are not there, each as ``missing_name`` gives it.

        Of a module they are the files that it would be read from.
        """
        paths = dict(self._not_there)
        for module, candidates in self._not_found.items():
            if module not in sys.modules:
                paths |= dict.fromkeys(candidates)
        found = (self._files.relative(path) for path in paths if not os.path.exists(path))
        names = list(dict.fromkeys(name for name in found if name is not None))
        return sorted(missing_name(name) for name in names[:_MOST_MISSING])

    def not_found(self, module: str, folders: Iterable[str]) -> None:
        """Record a module that no finder has found, where a source of the project asks for it."""
        if self._active and module not in self._not_found and self._asked_by_project():
            last = module.rpartition(".")[2]
            places = [os.path.join(os.path.abspath(folder), last) for folder in folders]
            inits = [os.path.join(place, "__init__.py") for place in places]
            self._not_found[module] = [*(f"{place}.py" for place in places), *inits]

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, mode, flags = args
            if _reads(mode, flags):
                self._record(path)
        elif event == "sqlite3.connect":
            self._record(_database(args[0]))
        elif event in _STARTS_PROGRAM and not self.ran_programs:
            self.ran_programs = self._asked_by_project()

    def _record(self, given: object) -> None:
        if not isinstance(given, str | bytes):
            return
        path = os.path.abspath(os.fsdecode(given))
        if os.path.exists(path):
            self._opened.add(path)
        else:
            self._not_there[path] = None

    def _asked_by_project(self) -> bool:
        """Say whether a source of the project asks, itself or through Python's own modules."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            file = frame.f_code.co_filename
            # generated code has no file: <string>, <frozen importlib._bootstrap>
            if module not in sys.stdlib_module_names and file != __file__ and not file.startswith("<"):
                return self._files.relative(file) is not None
            frame = frame.f_back
        return False


class _LastFinder:
    """Stands behind all other finders of modules: what it is asked for, none of them has found."""

    def __init__(self, trace: FileTrace) -> None:
        self._trace = trace

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        del target
        self._trace.not_found(name, sys.path if path is None else path)


def _reads(mode: object, flags: object) -> bool:
    """Say whether an audit event's mode (of open) or flags (of os.open) read an existing file."""
    if isinstance(mode, str):
        return not set(mode) & set("wax")
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_CREAT)


def _database(given: object) -> object:
    """Return the path that ``sqlite3.connect`` was given; of a URI, its path; None for memory."""
    text = os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else ""
    if text.startswith("file:"):
        text = unquote(text.removeprefix("file:").removeprefix("//").partition("?")[0].partition("#")[0])
    return text if text not in ("", ":memory:") else None


def native_readers() -> frozenset[str]:
    """Return the loaded packages that may read files unseen."""
    return NATIVE_READERS.intersection(sys.modules)


def imported_readers(root: Path, names: Iterable[str]) -> frozenset[str]:
    """Return what reads files unseen though tt loads it anyway, and is named in files of the project."""
    found: set[str] = set()
    for path in (root / name for name in names if name.endswith(".py")):
        found |= _READERS_OF_TT.intersection(imported_tops(path))
        calls = (ast.unparse(node) for node in _nodes(path) if isinstance(node, ast.Attribute))
        found |= {call for call in calls if call in _CALLS_OF_TORCH}
    return frozenset(found)


def _nodes(path: Path) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return


def imported_tops(path: Path) -> Iterator[str]:
    """Yield the first parts of the modules that a Python file imports, wherever in it."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
