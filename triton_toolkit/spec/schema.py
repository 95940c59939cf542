"""The JSON Schema of ``tt.yaml``, for editors and for near-match hints."""

from __future__ import annotations

from typing import Any

from triton_toolkit.spec.source import KeyPath


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the spec file."""
    from triton_toolkit.spec.models import Spec

    schema = Spec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "tt.yaml"
    schema["properties"]["include"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Files with more models, such as models/*.yaml.",
    }
    return schema


def keys_at(schema: dict[str, Any], path: KeyPath) -> list[str]:
    """Return the property names that the schema knows below ``path``, sorted."""
    nodes = [schema]
    for part in path:
        nodes = [child for node in nodes for child in _children(schema, node, part)]
    return sorted({key for node in nodes for n in _variants(schema, node) for key in n.get("properties", {})})


def _variants(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """Follow references and unions to plain schemas."""
    if "$ref" in node:
        return _variants(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    unions = [*node.get("oneOf", ()), *node.get("anyOf", ())]
    return [plain for option in unions for plain in _variants(schema, option)] or [node]


def _children(schema: dict[str, Any], node: dict[str, Any], part: str | int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for plain in _variants(schema, node):
        if isinstance(part, int):
            found += [plain["items"]] if "items" in plain else []
        elif part in plain.get("properties", {}):
            found.append(plain["properties"][part])
        elif isinstance(plain.get("additionalProperties"), dict):
            found.append(plain["additionalProperties"])
    return found
