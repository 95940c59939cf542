"""The environment that Python models run in: this interpreter's, but it never writes bytecode.

The stub, which runs Python models, embeds Python in isolated mode: it takes its prefix from the first
``python3`` on PATH and ignores PYTHONDONTWRITEBYTECODE, so importing a model would leave ``__pycache__`` in
the model repository. Therefore PATH begins with a small virtual environment of ours whose one ``.pth`` file
adds this interpreter's packages and turns the writing off before any model is imported.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path


def write_environment(folder: Path, libpython: Path | None) -> None:
    """Write the virtual environment into a new folder; its ``bin`` belongs first on PATH.

    Its ``lib`` gets a link to libpython alone: the interpreter's own ``lib`` folder may hold other
    versions of what the server links to.
    """
    interpreter = Path(sys.executable).resolve()
    (folder / "bin").mkdir(parents=True)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(interpreter)
    (folder / "pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    if libpython is not None:
        (folder / "lib" / libpython.name).symlink_to(libpython)
    (packages / "tt_embedded.pth").write_text(_pth(_package_folders()), encoding="utf-8")


def server_variables(
    base: Mapping[str, str], *, environment: Path, libraries: Path, temporary: Path
) -> dict[str, str]:
    """Return the server's environment variables.

    Args:
        base: This process's.
        environment: What ``write_environment`` wrote.
        libraries: The folder of the server's own libraries.
        temporary: Where models put their temporary files: a model that is killed leaves them.
    """
    paths = [str(environment / "bin"), os.path.dirname(sys.executable), base.get("PATH", "")]
    folders = [str(libraries), str(environment / "lib"), base.get("LD_LIBRARY_PATH", "")]
    return {
        "ORT_DISABLE_TELEMETRY": "1",  # unless base says otherwise: ONNX Runtime sends usage data by default
        **base,
        "PATH": os.pathsep.join(filter(None, paths)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",  # for what a model may start
    }


def _package_folders() -> list[str]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in (*site.getsitepackages(), *user) if os.path.isdir(path)]


def _pth(folders: list[str]) -> str:
    """Return a ``.pth`` file of one line, which Python's ``site`` executes at the start."""
    return (
        "import sys, site; sys.dont_write_bytecode = True; "
        f"list(map(site.addsitedir, {folders!r})); "  # a comprehension would not see the names above
        f"sys.prefix, sys.exec_prefix = {sys.prefix!r}, {sys.exec_prefix!r}\n"
    )
