"""What a figure was measured on: nothing about the client's machine is hidden."""

from __future__ import annotations

import os
import platform
from typing import Any

from triton_toolkit import __version__


def load_average() -> list[float]:
    """Return the mean number of runnable processes over the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def describe_machine() -> dict[str, Any]:
    """Return CPUs that this process may use, load average of 1, 5 and 15 minutes, and versions."""
    from importlib import metadata

    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": load_average(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {
            "tt": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("grpcio", "tritonclient", "numpy")},
        },
    }
