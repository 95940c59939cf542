"""What this machine has: tools, extras, GPU, embedded server. Looks, and changes nothing.

Versions come from package metadata, not from imports: importing torch alone takes seconds, and
importing tensorrt on a host without a driver can abort the process.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from triton_toolkit import __version__
from triton_toolkit._machine import Gpus, Host, find_gpus, look_at_host
from triton_toolkit._optional import EXTRAS
from triton_toolkit._progress import Progress, Silent
from triton_toolkit.errors import MissingDependencyError

DISTRIBUTION = "triton-toolkit"
COMMANDS = {
    "nvidia-smi": "the NVIDIA driver's own report",
    "docker": "production Triton containers; tt itself does not need it",
    "tritonserver": "a Triton installed on this host; tt serve brings its own",
}
"""Programs that are looked for on PATH, and what each is for."""

_ALTERNATIVES = {"onnxruntime": "onnxruntime-gpu"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_EXTRA_MARKER = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
_CLAUSE = re.compile(r"(>=|==|<)\s*([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed or missing package.

    Attributes:
        name: As in the package index.
        wanted: Version condition such as ``>=2.6``, or empty.
        version: What is installed, None when missing.
        fits: Whether it is installed in a wanted version.
    """

    name: str
    wanted: str
    version: str | None
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An optional part of the toolkit; "base" is what is always there."""

    name: str
    purpose: str
    packages: tuple[Package, ...]
    complete: bool
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Whether the embedded Triton server runs here.

    ``checked`` is True when it was really started, False when only its parts were looked at.
    """

    available: bool
    checked: bool
    version: str | None
    reason: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """All that ``tt env`` says."""

    tt: str
    python: str
    executable: str
    host: Host
    extras: tuple[Extra, ...]
    gpu: Gpus
    embedded: Embedded
    commands: dict[str, str | None]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return asdict(self)


def look_around(*, start_server: bool = False, progress: Progress | None = None) -> Environment:
    """Look at the machine.

    Args:
        start_server: Really start the embedded server, with an empty repository, and stop it.
        progress: Told about the start.
    """
    extras = tuple(_extras())
    return Environment(
        tt=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        host=look_at_host(),
        extras=extras,
        gpu=find_gpus(),
        embedded=_embedded(start_server=start_server, progress=progress or Silent()),
        commands={name: shutil.which(name) for name in COMMANDS},
        warnings=tuple(_warnings()),
    )


def _extras() -> Iterator[Extra]:
    """Yield the base and each extra with its packages, as the installed metadata names them."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        requirements = []
    wanted: dict[str, list[Package]] = {}
    for text in requirements:
        match = _REQUIREMENT.fullmatch(text)
        if match is None:
            continue
        extra = _EXTRA_MARKER.search(match[3] or "")
        wanted.setdefault(extra[1] if extra else "base", []).append(_package(match[1], match[2].strip()))
    purposes = {"base": "specs, configs, repositories, clients: what every command needs", **EXTRAS}
    for name, purpose in purposes.items():
        packages = tuple(wanted.get(name, ()))
        yield Extra(
            name=name,
            purpose=purpose,
            packages=packages,
            complete=bool(packages) and all(package.fits for package in packages),
            install=f"pip install '{DISTRIBUTION}" + ("'" if name == "base" else f"[{name}]'"),
        )


def _package(name: str, wanted: str) -> Package:
    version = _version(name)
    if version is None and name in _ALTERNATIVES:
        other = _version(_ALTERNATIVES[name])
        name, version = (_ALTERNATIVES[name], other) if other else (name, None)
    return Package(
        name=name, wanted=wanted, version=version, fits=version is not None and satisfies(version, wanted)
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def satisfies(version: str, wanted: str) -> bool:
    """Say whether a version meets conditions of the form ``>=1.2``, ``==1.2.3``, ``<2``, with commas.

    Only the release numbers count: local parts (``+cpu``) and pre-release suffixes are left aside.
    """
    have = _numbers(version)
    for operator, text in _CLAUSE.findall(wanted):
        want = _numbers(text)
        width = max(len(have), len(want))
        a, b = (have + (0,) * width)[:width], (want + (0,) * width)[:width]
        if not {">=": a >= b, "==": a == b, "<": a < b}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _warnings() -> Iterator[str]:
    cpu, gpu = _version("onnxruntime"), _version("onnxruntime-gpu")
    if cpu and gpu:
        yield (
            f"onnxruntime {cpu} and onnxruntime-gpu {gpu} are both installed: they write the same files, so "
            "the one installed last wins; uninstall both, then install one"
        )
    numpy, pytriton = _version("numpy"), _version("nvidia-pytriton")
    if numpy and pytriton and not satisfies(numpy, "<2"):
        yield f"numpy {numpy} is installed, but nvidia-pytriton {pytriton} needs numpy<2"


def _embedded(*, start_server: bool, progress: Progress) -> Embedded:
    from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

    try:
        info = check_available()
    except MissingDependencyError as exc:
        return Embedded(available=False, checked=False, version=None, reason=exc.message, hint=exc.hint)
    if start_server:
        with tempfile.TemporaryDirectory(prefix="tt-env-") as folder:
            options = ServeOptions(repository=Path(folder), load=())
            with EmbeddedServer(options, progress=progress):
                pass
    return Embedded(available=True, checked=start_server, version=info.version, reason="", hint="")
