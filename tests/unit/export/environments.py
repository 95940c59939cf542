"""Real environments without downloads: links to packages that the tests' own environment has."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

_NAME = re.compile(r"[\w.-]+")


def make_environment(folder: Path, *packages: str) -> Path:
    """Make an environment with these packages and what they require, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    link_packages(site_packages(folder), *packages)
    return python


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def link_packages(target: Path, *packages: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for distribution in closure(packages):
        tops = {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


def closure(packages: tuple[str, ...]) -> list[metadata.Distribution]:
    """Return the distributions of some packages and of all that they require here."""
    found: dict[str, metadata.Distribution] = {}
    todo = list(packages)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform or Python
            continue
        todo += [
            match[0]
            for line in found[name].requires or ()
            if "extra ==" not in line and (match := _NAME.match(line))
        ]
    return list(found.values())


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel of these files and return its file name."""
    info = f"{name}-{version}.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    whole[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*whole, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in whole.items():
            archive.writestr(inner, text)
    return path.name
