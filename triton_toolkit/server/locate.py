"""Where the embedded server lies, and whether it can run here.

The package ``nvidia-pytriton`` carries the server's binary, its Python backend, and a stub (the
process that runs Python models) for each minor version of Python. Nothing of it is imported: the
files are found through the package's metadata, which costs milliseconds.
"""

from __future__ import annotations

import ctypes.util
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from triton_toolkit.errors import MissingDependencyError

_PACKAGE = "nvidia-pytriton"
_TRITON_OF_PACKAGE = {"0.7.0": "2.51.0"}
_OLDEST_GLIBC = (2, 35)  # the wheel's tag, manylinux_2_35
_MACHINES = ("x86_64", "aarch64")
_INSTALL_HINT = "pip install 'triton-toolkit[serve]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInfo:
    """The parts of the embedded server, all present on this host."""

    version: str
    """Triton's version, such as ``2.51.0``; ``unknown`` for a package that the tests have not met."""
    package_version: str
    """The version of ``nvidia-pytriton``."""
    server: Path
    """The binary ``tritonserver``."""
    python_backend: Path
    """The folder of the Python backend's library and its ``triton_python_backend_utils.py``."""
    stub: Path
    """``triton_python_backend_stub`` for this interpreter's minor version."""
    caches: Path
    """The folder of the response caches."""
    libraries: Path
    """The folder of the server's own libraries, which ``LD_LIBRARY_PATH`` must hold."""
    libpython: Path | None
    """The shared libpython that the stub links to; None where the loader finds it by itself."""


def check_available() -> EmbeddedInfo:
    """Find the embedded server; cheap, and imports nothing of it.

    Raises:
        MissingDependencyError: The platform has no wheel, the package is not installed, it has no
            stub for this Python, or the stub would not find its libpython.
    """
    _check_platform()
    from importlib import metadata

    try:
        distribution = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise MissingDependencyError(
            f"{_PACKAGE} is not installed; it carries the embedded Triton server", hint=_INSTALL_HINT
        ) from None
    site = Path(str(distribution.locate_file("")))
    home = site / "pytriton" / "tritonserver"
    libraries = site / "nvidia_pytriton.libs"
    info = EmbeddedInfo(
        version=_TRITON_OF_PACKAGE.get(distribution.version, "unknown"),
        package_version=distribution.version,
        server=home / "bin" / "tritonserver",
        python_backend=home / "backends" / "python",
        stub=_stub(home / "python_backend_stubs"),
        caches=home / "caches",
        libraries=libraries,
        libpython=_libpython(),
    )
    for path in (info.server, info.python_backend / "libtriton_python.so", libraries):
        if not path.exists():
            raise MissingDependencyError(
                f"{_PACKAGE} {distribution.version} lacks {path}; the installation is damaged or incomplete",
                hint=f"pip install --force-reinstall '{_PACKAGE}=={distribution.version}'",
            )
    return info


def _check_platform() -> None:
    """Refuse where the package has no wheel: other systems, other machines, musl, an old glibc."""
    elsewhere = "serve on a Linux host or in the container nvcr.io/nvidia/tritonserver, and use its --url"
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        raise MissingDependencyError(
            f"{_PACKAGE}, the embedded Triton server, has wheels for Linux on {' and '.join(_MACHINES)} "
            f"only; this is {platform.system()} on {machine}",
            hint=elsewhere,
        )
    library, version = platform.libc_ver()
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if library != "glibc" or found < _OLDEST_GLIBC:
        shown = f"glibc {version}" if library == "glibc" else "another C library (musl?)"
        raise MissingDependencyError(
            f"{_PACKAGE}, the embedded Triton server, needs glibc {_OLDEST_GLIBC[0]}.{_OLDEST_GLIBC[1]} "
            f"or newer; this host has {shown}",
            hint=elsewhere + "; Debian 12 and Ubuntu 22.04 are new enough",
        )


def _stub(stubs: Path) -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = stubs / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stubs.glob("*"))) or "none"
        raise MissingDependencyError(
            f"{_PACKAGE} has no Python backend for Python {version}; it has {known}",
            hint="create the virtual environment with Python 3.11 or 3.12",
        )
    return stub


def _libpython() -> Path | None:
    """Return the shared libpython that the stub links to, None where the loader finds it by itself.

    Interpreters of pyenv, conda and uv keep it outside the loader's path, and some builds have none.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix, "lib")):
        if folder and Path(folder, name).is_file():
            return Path(folder, name)
    if ctypes.util.find_library(name.removeprefix("lib").partition(".so")[0]):
        return None
    raise MissingDependencyError(
        f"the embedded server's Python backend needs {name}, which {sys.executable} has not",
        hint=f"install {name.partition('.so')[0]} from the system's packages, or use a Python that was built "
        "with --enable-shared",
    )
