"""``tt status``: what a target serves, and how it differs from what is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from triton_toolkit.cli._options import json_option, require_target, server_option, spec_option, target_option

if TYPE_CHECKING:
    from triton_toolkit.cli._output import Console
    from triton_toolkit.deploy.status import TargetStatus


@click.command(
    epilog="""\b
Examples:
  tt status --to local
  tt status --to local --json
"""
)
@target_option
@click.option("--verify", is_flag=True, help="Also hash the files of every version on the target.")
@server_option
@spec_option
@json_option
def command(target: str | None, verify: bool, server: str | None, spec_path: Path, json_mode: bool) -> None:
    """Show what a target serves, and its drift from what is built.

    Only reads; differences do not change the exit code.
    """
    from triton_toolkit.cli._output import Console
    from triton_toolkit.deploy.status import read_status
    from triton_toolkit.spec.load import load_project

    console = Console(json_mode)
    project = load_project(spec_path)
    target = require_target(target, project)
    status = read_status(project.at_server(target, server), target, verify=verify)
    if json_mode:
        console.json(status.as_dict())
    else:
        _show(console, status)


def _show(console: Console, status: TargetStatus) -> None:
    from triton_toolkit.deploy.status import NOT_DEPLOYED

    rows = [
        [
            model.name,
            str(version.number),
            version.state or "not loaded",
            version.passport.created if version.passport else "-",
            version.reason,
        ]
        for model in status.models
        for version in reversed(model.versions)
    ]
    ready = "ready" if status.ready else "not ready"
    console.line(f"{status.target}: {status.store}, {status.url} (Triton {status.server.version}, {ready})")
    if status.mismatch:
        console.line(
            f"this server does not seem to read this store: {status.mismatch}; look at `store` and `servers` "
            "of the target, and at --server"
        )
    if rows:
        console.table(["model", "version:>", "state", "built", "reason"], rows)
    else:
        console.line(f"no models; tt deploy --to {status.target}")
    for model in status.models:
        for problem in model.drift:
            if problem != NOT_DEPLOYED:
                console.line(f"{model.name}: {problem}")
    absent = [model.name for model in status.models if NOT_DEPLOYED in model.drift]
    if absent:
        console.line(f"{NOT_DEPLOYED}: {', '.join(absent)}")
    if status.verified:
        _show_verified(console, status)
    if status.lock is not None:
        console.line(f"a deployment is under way: {status.lock}")
    for name in status.leftovers:
        console.line(f"left by a deployment that ended without a word: {name} (the next clears it up)")


def _show_verified(console: Console, status: TargetStatus) -> None:
    """Say that all is well; damage is among the drift."""
    versions = [version for model in status.models for version in model.versions if version.on_disk]
    hashed = [version for version in versions if version.passport is not None]
    if hashed and not any(version.damage for version in hashed):
        count = f"{len(hashed)} version{'' if len(hashed) == 1 else 's'} hashed"
        console.line(f"all files are as built ({count})")
    if len(hashed) < len(versions):
        console.line(f"not deployed by tt, so not checked: {len(versions) - len(hashed)}")
