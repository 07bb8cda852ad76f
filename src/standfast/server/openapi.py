"""The OpenAPI 3.1 document, made from the endpoints and their types, and ``/docs``, a page that shows it.

The page needs no script and no other server.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from standfast import __version__
from standfast.server.endpoints import WEBSOCKET, Endpoint
from standfast.server.types import Problem, Upload

EVENT_STREAM = "text/event-stream"
_REFERENCE = "#/components/schemas/{name}"
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8885; }
article { margin: 1.2rem 0; }
code { font-family: ui-monospace, monospace; }
.method { display: inline-block; min-width: 4.5em; font-weight: 600; }
.role { opacity: .75; font-size: .85em; }
table { border-collapse: collapse; margin: .3rem 0; }
td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"


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


class ApiPage:
    """Answers with the page of an OpenAPI document."""

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._describe = describe

    @cached_property
    def html(self) -> str:
        return render(self._describe())

    async def __call__(self, request: Request) -> Response:
        return HTMLResponse(self.html, headers={"content-security-policy": _POLICY})


def render(document: dict[str, Any]) -> str:
    """Return the page: operations by resource, then the types that they refer to."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(render_operation(method, path, operation))
    sections = "".join(f"<section><h2>{escape(tag)}</h2>{''.join(parts)}</section>" for tag, parts in by_tag.items())
    types = "".join(render_type(name, one) for name, one in sorted(document["components"]["schemas"].items()))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>standfast API</title><style>{_STYLE}</style><h1>standfast API</h1>"
        "<p>Every request needs <code>Authorization: Bearer TOKEN</code>. The document for programs is "
        f"<a href=openapi.json>openapi.json</a>.</p>{sections}<section><h2>Types</h2>{types}</section></html>"
    )


def render_operation(method: str, path: str, operation: dict[str, Any]) -> str:
    role = operation.get("x-role")
    roles = f" <span class=role>{escape(role)}</span>" if role else ""
    return (
        f"<article id={escape(operation['operationId'])}><code><span class=method>{method.upper()}</span>"
        f"{escape(path)}</code>{roles}<br>{escape(operation['summary'])}{render_text(operation.get('description'))}"
        f"{render_parameters(operation)}{render_content(operation)}</article>"
    )


def render_text(text: str | None) -> str:
    return "" if not text else "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n"))


def render_parameters(operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(one['name'])}</code><td>{one['in']}<td>{render_schema(one['schema'])}"
        for one in operation["parameters"]
        if one["in"] != "path"
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def render_content(operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    lines = [f"sends {kind} {render_schema(one.get('schema', {}))}" for kind, one in body.items()]
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        if status != "default":
            lines += [
                f"answers {status} {kind} {render_schema(one.get('schema', {}))}" for kind, one in content.items()
            ]
    return "".join(f"<div class=role>{line}</div>" for line in lines)


def render_schema(schema: dict[str, Any]) -> str:
    """Return a type in a few words, with links to the types that have names."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f"<a href='#type-{name}'>{name}</a>"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(render_schema(one) for one in choices)
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {render_schema(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))


def render_type(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{render_schema(one)}"
        for field, one in schema.get("properties", {}).items()
    )
    text = escape(schema.get("description", ""))
    return f"<article id='type-{escape(name)}'><strong>{escape(name)}</strong><br>{text}<table>{rows}</table></article>"
