"""What each Triton container holds: a dated table, with "unknown" where nobody looked.

The tables are package data (``triton_toolkit/data/*.tsv``); each file's head says where its
columns come from and what the grades mean. Nothing here guesses: an unknown value is None.

Sources: server branches r22.01 to r26.08 (TRITON_VERSION, build.py), NVIDIA's release notes, ONNX
Runtime's "ONNX Runtime compatibility" page, ONNX's Versioning.md, and the wheels of ONNX Runtime
themselves, which were asked what they load.
"""

from __future__ import annotations

import csv
import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from triton_toolkit.errors import UsageError

EMBEDDED_RELEASE = "24.10"
"""The container whose Triton (2.51.0) the embedded server is; the target when none is named."""

_DATA = Path(__file__).parent.parent / "data"
_UNKNOWN = ("unknown", "-")
_TAG = re.compile(r"\d\d\.(?:0[1-9]|1[0-2])")


class Graded(NamedTuple):
    """A value (None: unknown) with how well it is known.

    Grade A: the maker's own repository; B: a secondary source, named in ``source``; W: read off the
    Windows build, which lags; "" where the value is unknown.
    """

    value: str | None
    grade: str
    source: str


class OnnxLimits(NamedTuple):
    """The highest ``ai.onnx`` opset, IR version and ``ai.onnx.ml`` opset that load; None: unknown."""

    opset: int | None
    ir_version: int | None
    ml_opset: int | None = None


class ExportTarget(NamedTuple):
    """The highest opset and IR version that a model file may have."""

    opset: int
    ir_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One container ``tritonserver:YY.MM-py3``; None where the table does not know.

    Attributes:
        container: Its tag and date, such as ``24.10``.
        triton: The server's version, such as ``2.51.0``.
        onnxruntime: ONNX Runtime of its C++ backend.
        tensorrt: TensorRT, with a grade.
        cuda: CUDA toolkit.
        driver: Lowest driver branch, as NVIDIA states it; data-centre GPUs may run older
            long-lived branches through forward compatibility.
        python: Python of the Python backend's stub.
        compute_capability: Lowest GPU compute capability that it accepts.
        opset: Highest ``ai.onnx`` opset that its ONNX Runtime loads.
        ir_version: Highest ONNX IR version that its ONNX Runtime loads.
        note: Where two sources disagree, or empty.
    """

    container: str
    triton: str
    onnxruntime: str | None
    tensorrt: Graded
    cuda: str | None
    driver: str | None
    python: str | None
    compute_capability: str
    opset: int | None
    ir_version: int | None
    note: str

    @property
    def is_released(self) -> bool:
        """Whether it was out when the table was made."""
        return not self.triton.endswith("dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that servers before ``first`` do not have.

    ``config`` features are fields or values of model_config.proto: a config that uses one does not
    parse at all on an older server. ``flag`` features are options of ``tritonserver``.
    """

    kind: Literal["config", "flag", "behaviour"]
    name: str
    first: str
    meaning: str


@functools.cache
def releases() -> tuple[Release, ...]:
    """Return every release of the table, oldest first."""
    return tuple(_release(row) for row in _rows("releases.tsv"))


def release(container: str) -> Release:
    """Return the release with this container tag, such as ``24.10``.

    Raises:
        UsageError: The table has none; offers near ones.
    """
    known = {item.container: item for item in releases()}
    if container in known:
        return known[container]
    first, last = releases()[0].container, releases()[-1].container
    near = difflib.get_close_matches(container, known, n=3)
    raise UsageError(
        f"no Triton release {container!r} in the table, which goes from {first} to {last}",
        hint=f"near ones: {', '.join(sorted(near))}"
        if near
        else "name a container by year and month, such as 24.10",
    )


def at_most(container: str) -> Release:
    """Return the newest release of the table that is not newer than a container tag.

    A tag that is newer than the table is fine: what runs on the last known release runs on it.

    Raises:
        UsageError: Not a year and month, or older than the table.
    """
    if not _TAG.fullmatch(container) or container < releases()[0].container:
        release(container)
    return max((item for item in releases() if item.container <= container), key=lambda r: r.container)


def by_triton_version(version: str) -> Release | None:
    """Return the release whose server says this version (``2.51.0``); None where no row has it."""
    return next((item for item in releases() if item.triton == version), None)


def onnxruntime_limits(version: str) -> OnnxLimits:
    """Return what an ONNX Runtime version loads, patch releases as their neighbours; None: unknown.

    A patch release that the table lacks takes the row of its minor version: no patch release in the
    table differs from the others of its minor version.
    """
    known = {row["onnxruntime"]: row for row in _rows("onnxruntime.tsv")}
    row = known.get(version) or next((known[name] for name in known if _minor(name) == _minor(version)), None)
    if row is None:
        return OnnxLimits(None, None, None)
    return OnnxLimits(int(row["opset"]), int(row["ir_version"]), int(row["ml_opset"]))


def onnx_limits(container: str) -> OnnxLimits:
    """Return what the ONNX Runtime of a Triton release loads.

    Raises:
        UsageError: No such release in the table.
    """
    found = release(container).onnxruntime
    return OnnxLimits(None, None, None) if found is None else onnxruntime_limits(found)


def export_target(container: str | None) -> ExportTarget:
    """Return the highest opset and IR version that run on a release and on all later ones.

    They are upper limits: an exporter may well write less. Where the table does not know a release's
    limits, those of the newest older release that it knows are taken, since a newer ONNX Runtime
    loads all that an older one did.

    Args:
        container: Oldest Triton container that the model must run on; None for the embedded
            server's (24.10).

    Raises:
        UsageError: Not a release, or one that is older than the table.
    """
    wanted = at_most(EMBEDDED_RELEASE if container is None else container)
    known = (item for item in reversed(releases()) if item.container <= wanted.container)
    return next(
        ExportTarget(item.opset, item.ir_version)
        for item in known
        if item.opset is not None and item.ir_version is not None
    )


def first_to_load(*, opset: int, ir_version: int) -> str:
    """Return the first release whose ONNX Runtime loads such a file; empty where the table has none."""
    found = (
        item.container
        for item in releases()
        if (item.opset or 0) >= opset and (item.ir_version or 0) >= ir_version
    )
    return next(found, "")


@functools.cache
def features() -> tuple[Feature, ...]:
    """Return what appeared at a known release, in the order of the table."""
    return tuple(Feature(**row) for row in _rows("features.tsv"))  # type: ignore[arg-type]


def has_feature(container: str, name: str) -> bool:
    """Say whether a release has a feature of the table, such as ``model_metrics``.

    Raises:
        KeyError: The table has no feature of that name.
        UsageError: No such release in the table.
    """
    first = {item.name: item.first for item in features()}[name]
    return release(container).container >= first


def _release(row: dict[str, str]) -> Release:
    found = _known(row["onnxruntime"])
    limits = OnnxLimits(None, None) if found is None else onnxruntime_limits(found)
    tensorrt = Graded(
        _known(row["tensorrt"]), _known(row["tensorrt_grade"]) or "", _known(row["tensorrt_source"]) or ""
    )
    return Release(
        container=row["container"],
        triton=row["triton"],
        onnxruntime=found,
        tensorrt=tensorrt,
        cuda=_known(row["cuda"]),
        driver=_known(row["driver"]),
        python=_known(row["python"]),
        compute_capability=row["compute_capability"],
        opset=limits.opset,
        ir_version=limits.ir_version,
        note=_known(row["note"]) or "",
    )


def _known(value: str) -> str | None:
    return None if value in _UNKNOWN else value


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@functools.cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    table = csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t", strict=True)
    return tuple(dict(row) for row in table)
