"""The OpenAPI 3.1 document, made from the endpoints and their types."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from standfast import __version__
from standfast.server.endpoints import WEBSOCKET, Endpoint
from standfast.server.types import Problem, Upload

EVENT_STREAM = "text/event-stream"
_REFERENCE = "#/components/schemas/{name}"


def build_openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    kinds = {id(kind): kind for one in endpoints for kind in (one.body, one.result) if is_described(kind)}
    schemas, components = msgspec.json.schema_components([*kinds.values(), Problem], ref_template=_REFERENCE)
    schema_by_kind = dict(zip([*kinds, id(Problem)], schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        if endpoint.method == WEBSOCKET:  # OpenAPI has no place for them
            continue
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = describe_operation(endpoint, schema_by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "standfast",
            "version": __version__,
            "description": "Durable agent runs, sessions and approvals.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def is_described(kind: Any) -> bool:
    return kind is not None and kind is not bytes and kind is not Upload


def describe_operation(endpoint: Endpoint, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.path.split("/")[1]],
        "summary": endpoint.summary,
        "parameters": [*describe_path(endpoint), *describe_query(endpoint), *describe_headers(endpoint)],
        "responses": describe_responses(endpoint, schemas),
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.rule is not None:
        operation["security"] = [{"bearer": []}]
        operation["x-role"] = endpoint.rule.own.name.lower()
        operation["x-role-for-other-owners"] = endpoint.rule.foreign.name.lower()
    if endpoint.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif endpoint.body is Upload:
        files = {"type": "array", "items": {"type": "string", "format": "binary"}}
        schema = {"type": "object", "required": ["file"], "properties": {"file": files}}
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    elif endpoint.body is not None:
        content = {"application/json": {"schema": schemas[id(endpoint.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def describe_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def describe_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([endpoint.query], ref_template=_REFERENCE)
    described = components[schema["$ref"].rpartition("/")[2]]
    required = described.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": one}
        for name, one in described["properties"].items()
    ]


def describe_headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = ["Idempotency-Key"] * endpoint.has_key + ["If-Match"] * endpoint.is_conditional
    names += ["Last-Event-ID"] * (endpoint.media_type == EVENT_STREAM)
    return [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in names]


def describe_responses(endpoint: Endpoint, schemas: dict[int, Any]) -> dict[str, Any]:
    problem = {"description": "An error", "content": {"application/problem+json": {"schema": schemas[id(Problem)]}}}
    if is_described(endpoint.result):
        content = {"application/json": {"schema": schemas[id(endpoint.result)]}}
        if endpoint.can_stream:
            content[EVENT_STREAM] = {}
        return {str(endpoint.status): {"description": endpoint.summary, "content": content}, "default": problem}
    if endpoint.media_type != "application/json":
        # OpenAPI 3.1 has no way to describe the events of a stream.
        is_stream = endpoint.media_type == EVENT_STREAM
        content = {endpoint.media_type: {} if is_stream else {"schema": {"type": "string"}}}
        return {"200": {"description": endpoint.summary, "content": content}, "default": problem}
    return {"204": {"description": endpoint.summary}, "default": problem}
