"""Values with units, as people write them: ``1ms``, ``64MiB``, ``50/s``."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d]*)\s*")

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "": 1, "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is not a {what}; write it like {example}")
    return float(match[1]), match[2]


def parse_seconds(text: str) -> float:
    """Return a duration in seconds: ``5s``, ``1.5ms``, ``500us``, ``2m``, ``1h``.

    Raises:
        ValueError: No number, no unit, or an unknown unit.
    """
    number, unit = _split(text, "duration", "20ms or 5s")
    if unit not in _SECONDS:
        raise ValueError(f"{text!r} needs a unit of time ({', '.join(_SECONDS)}), like 20ms or 5s")
    return number * _SECONDS[unit]


def parse_microseconds(value: str | int) -> int:
    """Return whole microseconds; a bare number is microseconds already (the proto's unit).

    Raises:
        ValueError: Malformed, negative, or not a whole number of microseconds.
    """
    if isinstance(value, int):
        micros = float(value)
    else:
        micros = float(value) if value.strip().isdecimal() else round(parse_seconds(value) * 1e6, 6)
    if micros < 0 or micros != int(micros):
        raise ValueError(f"{value!r} is not a whole, non-negative number of microseconds")
    return int(micros)


def parse_bytes(value: str | int) -> int:
    """Return a size in bytes: ``64MiB``, ``1GB``, or a bare number of bytes.

    Raises:
        ValueError: Malformed, negative, or not a whole number of bytes.
    """
    number, unit = (float(value), "") if isinstance(value, int) else _split(value, "size", "64MiB")
    if unit not in _BYTES:
        raise ValueError(f"{value!r} has an unknown unit; known: {', '.join(filter(None, _BYTES))}")
    size = number * _BYTES[unit]
    if size < 0 or size != int(size):
        raise ValueError(f"{value!r} is not a whole, non-negative number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """Return a size for people: ``812 B``, ``64.0 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
