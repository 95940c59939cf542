"""``tt schema``: the JSON Schema of tt.yaml, so that editors complete and check it."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  tt schema > tt.schema.json
  # then, as the first line of tt.yaml, for editors with a YAML language server:
  # yaml-language-server: $schema=tt.schema.json
"""
)
def command() -> None:
    """Print the JSON Schema of tt.yaml (draft 2020-12)."""
    from triton_toolkit.cli._output import Console
    from triton_toolkit.spec.schema import json_schema

    Console(json_mode=True).json(json_schema())
