"""The JSON Schema of ``tt.yaml``, for editors and for near-match hints."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

_INCLUDE = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Files with more models, such as models/*.yaml.",
}


@functools.cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the spec file; do not change the result."""
    from triton_toolkit.spec.models import Spec

    schema = Spec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "tt.yaml"
    schema["properties"]["include"] = _INCLUDE
    schema["anyOf"] = [{"required": ["models"]}, {"required": ["include"]}]
    schema["required"].remove("models")
    _add_short_forms(schema["$defs"])
    _relax_extending(schema)
    return schema


def _add_short_forms(defs: dict[str, Any]) -> None:
    """Add what validators turn into the long form: a range as a list, a step as a name."""
    size = {"type": "integer", "minimum": 1}
    short = {"type": "array", "prefixItems": [size, size, size], "items": False, "minItems": 3}
    defs["DimEntry"] = {"anyOf": [defs["DimEntry"], {**short, "description": "[min, opt, max]"}]}
    defs["Step"] = {"anyOf": [defs["Step"], {"type": "string", "description": "Name of a model."}]}


def _relax_extending(schema: dict[str, Any]) -> None:
    """Let a model that extends a family leave required keys, and its kind, to the family."""
    models = schema["properties"]["models"]
    union = models["additionalProperties"]
    forms: dict[str, list[Any]] = {}
    for kind in _kinds(schema).values():
        for key, form in kind["properties"].items():
            known = forms.setdefault(key, [])
            known += [form] if form not in known else []
        kind["not"] = {"required": ["extends"]}
    forms["kind"] = [{"enum": list(_kinds(schema))}]
    extending = {
        "type": "object",
        "description": "A model that starts from a family; its own keys win.",
        "properties": {
            key: known[0] if len(known) == 1 else {"anyOf": known} for key, known in forms.items()
        },
        "required": ["extends"],
        "additionalProperties": False,
    }
    models["additionalProperties"] = {"anyOf": [union, extending]}
    models["description"] = "The models by name."


def _kinds(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return kind of model -> its schema."""
    node = schema["properties"]["models"]["additionalProperties"]
    mapping = node.get("anyOf", [node])[0]["discriminator"]["mapping"]
    return {kind: schema["$defs"][ref.rpartition("/")[2]] for kind, ref in mapping.items()}


def kinds_with(schema: dict[str, Any], key: str) -> list[str]:
    """Return the kinds of model that have a key."""
    return [kind for kind, node in _kinds(schema).items() if key in node["properties"]]


def keys_at(schema: dict[str, Any], location: Sequence[str | int]) -> list[str]:
    """Return the property names that the schema knows below a location, sorted.

    Args:
        schema: What ``json_schema`` returned.
        location: Keys and indices as pydantic gives them: after ``models``, NAME comes the kind.
    """
    kinds = _kinds(schema)
    nodes = [schema]
    for depth, part in enumerate(location):
        if depth == 2 and location[0] == "models" and part in kinds:
            nodes = [kinds[str(part)]]
        else:
            nodes = [child for node in nodes for child in _children(schema, node, part)]
    return sorted({key for node in nodes for n in _variants(schema, node) for key in n.get("properties", {})})


def _variants(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """Follow references and unions to plain schemas."""
    if "$ref" in node:
        return _variants(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    unions = [*node.get("oneOf", ()), *node.get("anyOf", ())]
    plain = [found for option in unions for found in _variants(schema, option)]
    return [node, *plain] if "properties" in node or not plain else plain


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
