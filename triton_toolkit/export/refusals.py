"""What an exporter's exception means, in one line; its whole text goes to the detail."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from triton_toolkit.core.releases import first_to_load
from triton_toolkit.errors import ExportError
from triton_toolkit.export.source import reason
from triton_toolkit.export.trace_files import ProjectFiles

_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_UNSUPPORTED = re.compile(r"Exporting the operator '([^']+)' to ONNX opset version (\d+) is not supported")
_ADDED_IN = re.compile(r"added in version (\d+)")
_CALL_SITE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)|(?m:^)\s*(\S+)\((\d+)\): (\S+)')
"""A line of a stack trace: as Python writes it, and as TorchScript does, innermost first."""

_SPECIALISED = re.compile(r"(\w+) was inferred to be a constant \((\d+)\)")


def refusal(exc: Exception, files: ProjectFiles, exporter: str) -> ExportError:
    """Say in one line why an exporter refused.

    Args:
        exc: What it raised.
        files: The project's files, to name the user's line.
        exporter: How to call it.
    """
    cause: BaseException = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause)
    place = call_site(text, files) or call_site("".join(traceback.format_exception(cause)), files)
    at = f" ({place})" if place else ""
    detail = "".join(traceback.format_exception(exc))
    if match := _SPECIALISED.search(text):
        return fixed_dimension(match[1], int(match[2]), at, detail)
    if match := _NO_FUNCTION.search(text):
        return no_operator(match[1], at, detail)
    if match := _UNSUPPORTED.search(text):
        return _too_old(match[1], int(match[2]), text, at, detail)
    if "data-dependent" in text:
        return value_decision(at, f": {reason(cause)}", detail)
    return ExportError(f"{exporter} refuses the model{at}: {reason(cause)}", detail=detail)


def fixed_dimension(name: str, size: int, at: str, detail: str = "") -> ExportError:
    """Return the error about a dynamic dimension that came out fixed; ``at`` is `` (place)`` or empty."""
    return ExportError(
        f"dimension {name!r} is declared dynamic, but the model fixes it at {size}, the size of the "
        f"example{at}",
        hint="look for int(), .item(), a Python loop over the dimension, or a number where forward needs "
        "x.shape[...] or -1; or declare a fixed size",
        detail=detail,
    )


def value_decision(at: str, why: str = "", detail: str = "") -> ExportError:
    """Return the error about a forward that branches on the values of a tensor."""
    return ExportError(
        f"forward decides by the values of a tensor, which an export cannot follow{at}{why}",
        hint="use torch.where, or torch.cond for whole branches",
        detail=detail,
    )


def no_operator(operator: str, at: str, detail: str) -> ExportError:
    """Return the error about an operator that cannot be written in ONNX."""
    return ExportError(
        f"the exporter has no ONNX form of {operator}{at}",
        hint="compute it with other operations, or before or after the model",
        detail=detail,
    )


def _too_old(operator: str, opset: int, text: str, at: str, detail: str) -> ExportError:
    added = _ADDED_IN.search(text)
    if not added:
        return no_operator(operator, at, detail)
    needed = int(added[1])
    release = first_to_load(opset=needed, ir_version=0)
    return ExportError(
        f"{operator} can be written from opset {needed} on, and the export is to opset {opset}{at}",
        hint=f'set release: "{release}" or newer in tt.yaml, whose ONNX Runtime has opset {needed}'
        if release
        else "compute it with other operations",
        detail=detail,
    )


def call_site(text: str, files: ProjectFiles) -> str:
    """Return ``file:line, in function`` of the user's innermost line in a stack trace, or nothing."""
    sites = [match.groups() for match in _CALL_SITE.finditer(text)]
    python = [site[:3] for site in sites if site[0]]
    script = [site[3:] for site in sites if site[3]]
    for file, line, function in [*reversed(python), *script]:
        name = files.relative(file)
        if name is not None and Path(file).is_file():
            return f"{name}:{line}, in {function}"
    return ""
