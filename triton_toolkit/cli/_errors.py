"""How an error is printed for people."""

from __future__ import annotations

import click


def print_error(message: str, *, hint: str = "", detail: str = "") -> None:
    """Print an error on stderr: what is wrong, the evidence, what to do next."""
    click.echo(click.style("Error: ", fg="red", bold=True) + message, err=True)
    if detail:
        click.echo(detail.rstrip(), err=True)
    if hint:
        click.echo(click.style("Hint: ", fg="yellow") + hint, err=True)
