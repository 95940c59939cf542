"""Run a module of this package in an interpreter that does not have it: ``python bootstrap.py MODULE …``.

Only this package becomes importable there, from its own folder; what is installed beside it does not, so
the model meets none of the packages of tt. Must not import anything but the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

_PACKAGE = "triton_toolkit"


def bring_in(folder: str) -> None:
    """Import the package from its folder, without putting its neighbours on ``sys.path``."""
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # Python puts a script's folder first: its session.py and others would hide the model's own.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    bring_in(os.path.dirname(here))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
