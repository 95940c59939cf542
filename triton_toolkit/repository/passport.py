"""The passport: the facts that travel with a model version, and its golden sample.

``passport.json`` and ``samples.npz`` lie in the version folder, beside the model file; Triton
ignores both. The samples hold named inputs and the outputs that the original gave for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file, write_json
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.core.tolerances import Tolerances
from triton_toolkit.errors import RepositoryError
from triton_toolkit.repository.layout import PASSPORT_NAME, SAMPLES_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
"""Version of the passport's format; a newer one is refused."""

MISSING = "missing"
"""In place of a dependency's SHA-256: the build asked for that file, and it was not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passport:
    """What is known of one built version.

    Attributes:
        model: Name of the model on the server.
        kind: torch, onnx, python, prebuilt or ensemble.
        variant: Name of the variant, such as fp32; empty where a kind has none.
        backend: Triton's backend name; empty for an ensemble.
        created: When it was built, ISO 8601 in UTC.
        tools: Name -> version of what built it (tt, torch, onnx …).
        key: What the build depended on: part -> value or SHA-256. Equal keys mean nothing to rebuild.
        dependencies: Project files that were read while building, relative to the spec -> SHA-256;
            MISSING for one that was asked for and not there.
        files: Files of the version folder except this one -> SHA-256.
        config_sha256: SHA-256 of the config.pbtxt rendered with it.
        inputs: Input tensors, batch dimension included, dynamic dimensions by name.
        outputs: Output tensors, likewise.
        batch_dim: Name of the dimension that Triton batches over, None without.
        dims: Dynamic dimension -> [min, opt, max], and its step where that is not 1.
        onnx: opset (domain -> version) and ir_version, as read back from the file; {} without.
        release: Triton container that opset and IR version were chosen for; None without.
        tolerance: How far served outputs may lie from the samples; ``core.tolerances`` reads it.
        parity: Figures of the proof against the original, one entry a combination of sizes.
        accuracy: metric, original, exported, drop; {} where none was asked for.
        precision: What a variant in another precision holds: declared, kept (node -> why it stays in
            FP32), nodes by precision, what was tried; {} for fp32.
        speed: Whether a variant is faster than fp32 on the machine that built it; {} for fp32.
        requires: Names of other models that must be served (the steps of an ensemble).
    """

    model: str
    kind: str
    variant: str
    backend: str
    created: str
    tools: dict[str, str]
    key: dict[str, str]
    dependencies: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    config_sha256: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batch_dim: str | None = None
    dims: dict[str, list[int]] = field(default_factory=dict)
    onnx: dict[str, Any] = field(default_factory=dict)
    release: str | None = None
    tolerance: dict[str, Any] = field(default_factory=dict)
    parity: list[dict[str, Any]] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, ``format`` first."""
        value: dict[str, Any] = {"format": FORMAT}
        for name in self.__dataclass_fields__:
            item = getattr(self, name)
            value[name] = [t.as_dict() for t in item] if name in ("inputs", "outputs") else item
        return value

    def identity(self) -> str:
        """Return the hash of what an ensemble over this version depends on: files, tensors, ranges."""
        tensors = [tensor.as_dict() for tensor in (*self.inputs, *self.outputs)]
        parts = [self.files, tensors, self.batch_dim, self.dims]
        return sha256_bytes(canonical_json(parts).encode())


def write_passport(version_folder: Path, passport: Passport) -> None:
    """Write ``passport.json`` into a (staged) version folder."""
    write_json(version_folder / PASSPORT_NAME, passport.as_dict())


def read_passport(version_folder: Path) -> Passport | None:
    """Read a version folder's passport; None where it has none.

    Raises:
        RepositoryError: Not JSON, not of this format, or a key is missing.
    """
    path = version_folder / PASSPORT_NAME
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise RepositoryError(
            f"{path}: not a readable passport: {exc}", hint="build the model again"
        ) from exc
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise RepositoryError(
            f"{path}: not a passport of format {FORMAT}",
            hint="it was written by another version of tt; build again",
        )
    try:
        for name in ("inputs", "outputs"):
            value[name] = tuple(TensorSpec.from_dict(item) for item in value[name])
        Tolerances.from_dict(value.get("tolerance", {}))
        return Passport(**value)
    except (KeyError, TypeError, ValueError) as exc:
        raise RepositoryError(f"{path}: incomplete passport: {exc}", hint="build the model again") from exc


def check_files(version_folder: Path, passport: Passport) -> list[str]:
    """Return what differs between a version folder and its passport, in words; [] when all is as built."""
    problems = []
    for name, wanted in passport.files.items():
        path = version_folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif sha256_file(path) != wanted:
            problems.append(f"{name} is not the file that was built (its SHA-256 differs)")
    return problems


@dataclass(frozen=True, slots=True)
class Samples:
    """Golden inputs and the outputs that belong to them, by name; BYTES as object arrays of bytes."""

    inputs: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[Any]]


def write_samples(version_folder: Path, samples: Samples) -> None:
    """Write ``samples.npz`` without pickles; the same arrays give the same bytes.

    An array is ``input/NAME`` or ``output/NAME``. A BYTES array becomes its concatenated bytes and its
    element lengths (``NAME#bytes``, ``NAME#lengths``), since numpy's own fixed width drops trailing NUL
    bytes. A name with ``#`` or NUL, which cuts a zip entry's name, is percent-encoded below ``input%``
    or ``output%``.
    """
    import numpy as np

    arrays: dict[str, NDArray[Any]] = {}
    for side, group in (("input", samples.inputs), ("output", samples.outputs)):
        for name, array in group.items():
            key = _key(side, name)
            if array.dtype == object:
                lengths = [len(item) for item in array.ravel()]
                arrays[f"{key}#lengths"] = np.array(lengths, np.int64).reshape(array.shape)
                arrays[f"{key}#bytes"] = np.frombuffer(b"".join(array.ravel()), np.uint8)
            else:
                arrays[key] = array
    np.savez(version_folder / SAMPLES_NAME, **arrays)


def read_samples(path: Path) -> Samples | None:
    """Read the golden samples of a version folder (or of a ``.npz`` file); None where there are none.

    Raises:
        RepositoryError: The file is damaged or was not written by ``write_samples``.
    """
    import zipfile

    import numpy as np

    file = path / SAMPLES_NAME if path.is_dir() else path
    if not file.is_file():
        return None
    sides: dict[str, dict[str, NDArray[Any]]] = {"input": {}, "output": {}}
    try:
        with file.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            for key in archive.files:
                whole, _, part = key.rpartition("#")
                if part == "lengths" and f"{whole}#bytes" in archive.files:
                    side, name = _side_and_name(whole)
                    sides[side][name] = _join_bytes(archive[key], archive[f"{whole}#bytes"])
                elif part != "bytes" or f"{whole}#lengths" not in archive.files:
                    side, name = _side_and_name(key)
                    sides[side][name] = archive[key]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
        raise RepositoryError(
            f"{file}: not readable golden samples: {exc}", hint="build the model again"
        ) from exc
    return Samples(sides["input"], sides["output"])


def _key(side: str, name: str) -> str:
    return f"{side}%/{quote(name, safe='')}" if "#" in name or "\0" in name else f"{side}/{name}"


def _side_and_name(key: str) -> tuple[str, str]:
    side, _, name = key.partition("/")
    return (side[:-1], unquote(name)) if side.endswith("%") else (side, name)


def _join_bytes(lengths: NDArray[Any], data: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    result = np.empty(lengths.shape, dtype=object)
    flat, raw, start = result.reshape(-1), data.tobytes(), 0
    for index, length in enumerate(lengths.ravel()):
        flat[index] = raw[start : start + int(length)]
        start += int(length)
    return result
