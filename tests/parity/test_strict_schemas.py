"""Schemas that have a strict form, and those that would lose their meaning in it."""

import importlib
from typing import Any

import pytest


def to_strict(lib: Any, schema: Any) -> Any:
    return importlib.import_module(f"{lib.package}.strict_schema").ensure_strict_json_schema(schema)


TEXT = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": TEXT}}


def within(node: dict[str, Any], **defs: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"node": node}, "$defs": defs}


@pytest.mark.parametrize(
    "node",
    [
        {"$ref": "#/$defs/T", "minLength": 1},
        {"$ref": "#/$defs/T", "type": "integer"},
        {"$ref": "#/$defs/T", "allOf": [{"type": "integer"}]},
        {"$ref": "#/$defs/O", "additionalProperties": False},
        {"$ref": "#/$defs/O", "properties": {"b": TEXT}},
    ],
)
def test_a_reference_with_siblings_that_restrict_it_is_refused(lib: Any, node: dict[str, Any]) -> None:
    with pytest.raises(lib.UserError):
        to_strict(lib, within(node, T=TEXT, O=OBJECT))


@pytest.mark.parametrize("name", ["description", "title", "contentMediaType", "$anchor"])
def test_a_reference_with_an_annotation_is_replaced_by_its_target(lib: Any, name: str) -> None:
    strict = to_strict(lib, within({"$ref": "#/$defs/T", name: "x"}, T=TEXT))
    assert strict["properties"]["node"] == {"type": "string", name: "x"}


@pytest.mark.parametrize("reference", ["#/$defs/A%20B", "#/%24defs/A%20B"])
def test_a_reference_is_the_fragment_of_a_uri(lib: Any, reference: str) -> None:
    node = {"$ref": reference, "description": "x"}
    strict = to_strict(lib, within(node, **{"A B": TEXT, "A%20B": {"type": "integer"}}))
    assert strict["properties"]["node"]["type"] == "string"


@pytest.mark.parametrize(
    "parent",
    [
        {"additionalProperties": False},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"properties": {"outer": TEXT}},
        {"type": "string"},
    ],
)
def test_an_only_entry_of_all_of_that_differs_from_its_parent_is_refused(lib: Any, parent: dict[str, Any]) -> None:
    with pytest.raises(lib.UserError):
        to_strict(lib, {**within({**parent, "allOf": [{"$ref": "#/$defs/O"}]}, O=OBJECT)})


def test_numbers_and_booleans_are_different_values(lib: Any) -> None:
    with pytest.raises(lib.UserError):
        to_strict(lib, within({"const": True, "allOf": [{"const": 1}]}))
    assert to_strict(lib, within({"const": 1.0, "allOf": [{"const": 1}]}))["properties"]["node"]["const"] == 1


def test_references_in_a_circle_are_refused(lib: Any) -> None:
    parts = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    with pytest.raises(lib.UserError):
        to_strict(lib, {"type": "object", "$defs": parts, "allOf": [{"$ref": "#/$defs/A"}]})


def test_references_in_a_resource_of_its_own_are_refused(lib: Any) -> None:
    node = {"$id": "https://schemas.example/nested", "$defs": {"T": {"type": "integer"}}, "$ref": "#/$defs/T"}
    with pytest.raises(lib.UserError):
        to_strict(lib, within(node, T=TEXT))


def nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_a_schema_of_a_thousand_levels_is_refused(lib: Any) -> None:
    with pytest.raises(lib.UserError):
        to_strict(lib, nest(1000))
    assert to_strict(lib, nest(20))["required"] == ["a"]


@pytest.mark.parametrize("root", [{"type": ["object", "null"], "properties": {"a": TEXT}}, {"anyOf": [OBJECT]}])
def test_the_root_must_be_an_object(lib: Any, root: dict[str, Any]) -> None:
    with pytest.raises(lib.UserError):
        to_strict(lib, root)


def test_a_schema_must_be_a_mapping(lib: Any) -> None:
    with pytest.raises(TypeError):
        to_strict(lib, [])


def test_an_object_without_a_type_gets_it_and_free_keys_are_refused(lib: Any) -> None:
    assert to_strict(lib, {"properties": {"a": TEXT}})["type"] == "object"
    with pytest.raises(lib.UserError):
        to_strict(lib, within({"additionalProperties": TEXT}))


def test_a_discriminator_stays(lib: Any) -> None:
    kinds, discriminator = [TEXT, {"type": "integer"}], {"propertyName": "kind"}
    strict = to_strict(lib, within({"oneOf": kinds, "discriminator": discriminator}))["properties"]["node"]
    assert strict == {"anyOf": kinds, "discriminator": discriminator}
