"""The OpenAPI 3.1 document of the server, made from the route table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from tailrace import __version__
from tailrace.http.message import Headers, Response
from tailrace.http.route import ANY_METHOD, ARROW, OPEN, WAKE_TOKEN, Route

JSON: Final = "application/json"
_FIELDS: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\*?\}")


class ErrorFacts(msgspec.Struct):
    """Some errors have more fields."""

    code: str
    message: str


class ErrorDocument(msgspec.Struct):
    error: ErrorFacts


def response(routes: tuple[Route, ...]) -> Response:
    return Response(200, _FIELDS, _encoded(routes))


@lru_cache(maxsize=1)
def _encoded(routes: tuple[Route, ...]) -> bytes:
    return msgspec.json.encode(document(routes))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document, as JSON would have it."""
    shown = [route for route in routes if route.method != ANY_METHOD]
    kinds = [kind for route in shown for kind in (route.body, *_kinds(route.response)) if not _is_media(kind)]
    schemas, components = msgspec.json.schema_components(
        [*kinds, ErrorDocument], ref_template="#/components/schemas/{name}"
    )
    schema_of = {repr(kind): schema for kind, schema in zip([*kinds, ErrorDocument], schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        path = paths.setdefault(_PLACEHOLDER.sub(r"{\1}", route.path), {})
        path[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tailrace",
            "version": __version__,
            "summary": "Streams, tables and topics on one ordered, durable log.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "wake": {"type": "http", "scheme": "bearer", "description": "The token of a wake."},
            },
        },
    }


def _operation(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "tags": [route.tag],
        "security": _security(route),
        "responses": _responses(route, schema_of),
    }
    parameters = _parameters(route)
    if parameters:
        operation["parameters"] = parameters
    if route.permissions:
        operation["x-permissions"] = list(route.permissions)
    if route.body is not None:
        operation["requestBody"] = {"content": _content(route.body, schema_of)}
    return operation


def _operation_id(route: Route) -> str:
    words = [word for word in re.split(r"[^A-Za-z0-9]+", route.path) if word and word != "v1"]
    return "_".join([route.method.lower(), *(words or ["root"])])


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.access == WAKE_TOKEN:
        return [{"wake": []}]
    return [] if route.access == OPEN else [{"bearer": []}, {"basic": []}]


def _parameters(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in _PLACEHOLDER.findall(route.path)
    ]
    arrow = () if route.arrow is None else route.arrow.query or ()
    names = dict.fromkeys((*(route.query or ()), *route.ignored, *arrow))
    return found + [{"name": name, "in": "query", "schema": text} for name in names]


def _responses(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in (route.status, *route.more):
        responses[str(status)] = {"description": _DESCRIPTIONS[status]}
        content: dict[str, Any] = {}
        if route.method != "HEAD" and status in (200, 201):
            for kind in filter(None, _kinds(route.response)):
                content |= _content(kind, schema_of)
            if route.arrow is not None:
                content |= _content(ARROW, schema_of)
        if content:
            responses[str(status)]["content"] = content
    error = {"description": "An error."}
    if route.method != "HEAD":
        error["content"] = _content(ErrorDocument, schema_of)  # type: ignore[assignment]
    return responses | {"default": error}


_DESCRIPTIONS: Final = {200: "Success.", 201: "Created.", 204: "Success, without content.", 304: "Not modified."}


def _content(kind: Any, schema_of: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {}}
    return {JSON: {"schema": schema_of[repr(kind)]}}


def _kinds(response: Any) -> tuple[Any, ...]:
    return response if isinstance(response, tuple) else (response,)


def _is_media(kind: Any) -> bool:
    return kind is None or isinstance(kind, str)
