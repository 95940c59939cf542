"""``tt schema``: the JSON Schema of tt.yaml, so that editors complete and check it."""

from __future__ import annotations

import click

from triton_toolkit.cli._options import json_option


@click.command(
    epilog="""\b
Examples:
  tt schema > tt.schema.json
  # then, as the first line of tt.yaml, for editors with a YAML language server:
  # yaml-language-server: $schema=tt.schema.json
"""
)
@json_option
def command(json_mode: bool) -> None:
    """Print the JSON Schema of tt.yaml (draft 2020-12); it is JSON with --json or without."""
    from triton_toolkit.cli._output import Console
    from triton_toolkit.spec.schema import json_schema

    Console(json_mode=True).json(json_schema())
