"""A server's temporary folder, and the names of what else it leaves on the host while it runs.

All of them come from the folder's own random name, so that whoever clears up knows what was this server's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from triton_toolkit._files import host_errors
from triton_toolkit.errors import EnvironmentProblem
from triton_toolkit.server.environment import write_environment
from triton_toolkit.server.locate import EmbeddedInfo

LAUNCH_NAME = "launch.json"

_BACKENDS = Path(__file__).with_name("backends")
_SAFE_IN_A_SHELL = re.compile(r"[A-Za-z0-9._/+@%:,=-]+")
_PREFIX = "tt-serve-"
_NAME = re.compile(rf"{_PREFIX}(?P<id>[a-z0-9_]{{8}})")  # as tempfile makes it
_ENVIRONMENTS = b"/tmp/python_env_"


class ServerFolder:
    """A private temporary folder: the backends as the server wants them, and the log.

    The guardian removes it at the end; ``discard`` does so when there never was one.
    """

    def __init__(self, info: EmbeddedInfo) -> None:
        with host_errors("prepare the embedded server's temporary folder"):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            if not _SAFE_IN_A_SHELL.fullmatch(str(self.path)):
                self.discard()
                raise EnvironmentProblem(
                    f"the temporary folder {str(self.path.parent)!r} has a character that is not safe in a "
                    "shell, through which Triton starts its Python backend",
                    hint="set TMPDIR to a folder named with letters, digits and ._-",
                )
            try:
                self._fill(info)
            except BaseException:
                self.discard()
                raise

    @property
    def backends(self) -> Path:
        """What ``--backend-directory`` gets."""
        return self.path / "backends"

    @property
    def environment(self) -> Path:
        """The virtual environment of Python models."""
        return self.path / "env"

    @property
    def temporary(self) -> Path:
        """Where models put their temporary files."""
        return self.path / "tmp"

    @property
    def log(self) -> Path:
        """Where the server's output goes, unless it is to outlive the folder."""
        return self.path / "server.log"

    @property
    def shm_prefix(self) -> str:
        """How the names of its regions in ``/dev/shm`` begin."""
        return f"tt_{_id(self.path)}_"

    @property
    def env_prefix(self) -> str:
        """How the paths of the folders begin that its Python backend makes for packed environments.

        Its length is that of the path that the backend has built in.
        """
        return f"/tmp/tt_{_id(self.path)}"  # noqa: S108 - the backend takes no other place

    def reach(self, repository: Path) -> Path:
        """Return a path of the repository that is safe in a shell.

        Triton's Python backend starts each stub through ``bash -c`` with the model's path unquoted: a space
        breaks the command, and ``$(…)`` would be run. Such a repository is served through a link in here.
        """
        if _SAFE_IN_A_SHELL.fullmatch(str(repository)):
            return repository
        link = self.path / "repository"
        link.symlink_to(repository, target_is_directory=True)
        return link

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _fill(self, info: EmbeddedInfo) -> None:
        """Copy the Python backend with this interpreter's stub, and our own backends beside it.

        Copies, because the server refuses a library that a link leads out of the backend's folder.
        """
        if os.statvfs(self.path).f_flag & os.ST_NOEXEC:
            raise EnvironmentProblem(
                f"{self.path.parent} is mounted noexec, and the server's Python backend is run from there",
                hint="set TMPDIR to a folder where programs may be run",
            )
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(info.python_backend, self.backends / "python", ignore=ignore)
        self._name_environments(self.backends / "python" / "libtriton_python.so")
        stub = self.backends / "python" / info.stub.name
        shutil.copyfile(info.stub, stub)
        stub.chmod(0o755)
        for backend in sorted(path for path in _BACKENDS.iterdir() if (path / "model.py").is_file()):
            shutil.copytree(backend, self.backends / backend.name, ignore=ignore)
        write_environment(self.environment, info.libpython)
        self.temporary.mkdir()

    def _name_environments(self, library: Path) -> None:
        """Have our copy of the Python backend name its folders in ``/tmp`` after this server.

        It makes one at its start, under a path that no setting changes, and a server that is killed leaves
        it there; by its own name nobody could tell whose it is. A library that has the path in another form
        stays as it is.
        """
        code = library.read_bytes()
        name = os.fsencode(self.env_prefix)
        if code.count(_ENVIRONMENTS) == 1 and len(name) == len(_ENVIRONMENTS):
            library.write_bytes(code.replace(_ENVIRONMENTS, name))


def remove_leftovers(folder: Path) -> None:
    """Remove what the guardian removes at its end; for when it was killed."""
    for path in Path("/dev/shm").glob(f"tt_{_id(folder)}_*"):  # noqa: S108 - where Triton puts its regions
        path.unlink(missing_ok=True)
    for path in (*Path("/tmp").glob(f"tt_{_id(folder)}??????"), folder):  # noqa: S108 - see env_prefix
        shutil.rmtree(path, ignore_errors=True)


def belongs_to(folder: Path, lock_file: Path) -> bool:
    """Say whether a folder is that of the server with this lock file: by what the folder itself holds.

    Whoever is about to remove it knows it from a state file alone, and that may say anything.
    """
    if not (folder.is_absolute() and _NAME.fullmatch(folder.name)):
        return False
    try:
        about = folder.lstat()
        launch = json.loads((folder / LAUNCH_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return ours and isinstance(launch, dict) and launch.get("lock_file") == str(lock_file)


def _id(folder: Path) -> str:
    """Return the random part of a folder's name."""
    return folder.name.removeprefix(_PREFIX)
