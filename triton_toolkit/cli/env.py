"""``tt env``: what is installed, what each part is for, what this machine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from triton_toolkit.cli._options import json_option

if TYPE_CHECKING:
    from triton_toolkit.cli._output import Console
    from triton_toolkit.environment import Environment, Extra


@click.command(
    epilog="""\b
Examples:
  tt env            what is there, what is missing, how to install it
  tt env --check    start the embedded server as well, to see that it runs
  tt env --json     the same for a machine, or for a bug report
"""
)
@click.option("--check", is_flag=True, help="Really start the embedded server and stop it again.")
@json_option
def command(check: bool, json_mode: bool) -> None:
    """Show what is installed, what it is for, and what can run here.

    Versions of the toolkit and of every extra, the processor and GPUs, and whether the embedded
    Triton server runs on this machine. Nothing heavy is loaded for it.
    """
    from triton_toolkit.cli._output import Console
    from triton_toolkit.environment import look_around

    console = Console(json_mode)
    with console.progress() as progress:
        found = look_around(start_server=check, progress=progress)
    if json_mode:
        console.json(found.as_dict())
    else:
        _show(console, found)


def _show(console: Console, found: Environment) -> None:
    from triton_toolkit.environment import COMMANDS

    for name, text in _facts(found):
        console.line(f"{name:<16} {text}")
    rows = [[extra.name, _state(extra), extra.purpose, _packages(extra)] for extra in found.extras]
    console.table(["extra", "state", "for", "packages"], rows)
    programs = [[name, path or "not found", COMMANDS[name]] for name, path in found.commands.items()]
    console.table(["program", "where", "for"], programs)
    for extra in found.extras:
        if not extra.complete:
            console.line(f"to add {extra.name}: {extra.install}")
    for warning in found.warnings:
        console.line(f"Warning: {warning}", style="yellow")


def _facts(found: Environment) -> list[list[str]]:
    from triton_toolkit.core.units import format_bytes

    host = found.host
    quota = "" if host.cpu_quota is None else f", limited to {host.cpu_quota:g} CPUs"
    memory = [
        f"{what} {format_bytes(size)}"
        for what, size in (("", host.memory_bytes), ("shared memory", host.shared_memory_bytes))
        if size is not None
    ]
    return [
        ["tt", found.tt],
        ["Python", f"{found.python} ({found.executable})"],
        ["system", f"{host.os}; {host.libc}; {host.machine}"],
        ["CPU", f"{host.cpus} x {host.cpu}{quota}; {' '.join(host.cpu_flags) or 'no vector extensions'}"],
        ["memory", ", ".join(part.strip() for part in memory) or "unknown"],
        ["GPU", _gpu(found)],
        ["embedded Triton", _embedded(found)],
    ]


def _gpu(found: Environment) -> str:
    if not found.gpu.present:
        return f"no ({found.gpu.evidence})"
    return "; ".join(
        f"{gpu.name}, {gpu.memory_mib} MiB, compute capability {gpu.compute_capability}, driver {gpu.driver}"
        for gpu in found.gpu.found
    )


def _embedded(found: Environment) -> str:
    embedded = found.embedded
    if not embedded.available:
        return f"no: {embedded.reason}" + (f" ({embedded.hint})" if embedded.hint else "")
    return f"yes, {embedded.version}" + (" (started and stopped)" if embedded.checked else "")


def _state(extra: Extra) -> str:
    if extra.complete:
        return "present"
    return "partly" if any(package.version for package in extra.packages) else "missing"


def _packages(extra: Extra) -> str:
    parts = []
    for package in extra.packages:
        if package.version is None:
            parts.append(f"{package.name} missing")
        elif package.fits:
            parts.append(f"{package.name} {package.version}")
        else:
            parts.append(f"{package.name} {package.version} (needs {package.wanted})")
    return ", ".join(parts)
