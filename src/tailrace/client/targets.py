"""The parts of requests to a server: targets, parameters, bodies and credentials."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict
from urllib.parse import quote

import msgspec

from tailrace.errors import Invalid

MSGPACK: Final = "application/msgpack"
NOTHING: Final[Mapping[str, str]] = {}


class LogSource(TypedDict, total=False):
    """Names a table, a topic or a stream: one of them; `label` is an earlier change stream of the table."""

    table: str | None
    topic: str | None
    stream: str | None
    label: str | None


def quoted(name: str, what: str, safe: str = "") -> str:
    """A name as part of a path."""
    if not name:
        raise Invalid(f"'' cannot name {what}; give its name")
    try:
        return quote(name, safe=safe)
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} cannot name {what}: it is not valid UTF-8") from None


def stream_target(path: str) -> str:
    return f"/v1/stream/{quoted(path, 'a stream', '/')}" if path else "/v1/stream/"


def table_target(name: str) -> str:
    return f"/v1/tables/{quoted(name, 'a table')}"


def changes_target(table: str) -> str:
    return f"{table_target(table)}/stream"


def cursors_target(table: str, name: str | None = None) -> str:
    return f"{table_target(table)}/cursors" + ("" if name is None else f"/{quoted(name, 'a cursor')}")


def topic_target(name: str) -> str:
    return f"/v1/topics/{quoted(name, 'a topic')}"


def job_target(name: str) -> str:
    return f"/v1/jobs/{quoted(name, 'a job')}"


def view_target(name: str) -> str:
    return f"/v1/views/{quoted(name, 'a view')}"


def log_target(table: str | None, topic: str | None, stream: str | None, partition: int) -> str:
    """The log of a table, of a partition of a topic, or of a stream."""
    source_parameters(table, topic, stream)
    if table is not None:
        return changes_target(table)
    if topic is not None:
        return f"{topic_target(topic)}/{partition}/stream"
    assert stream is not None
    return stream_target(stream)


def source_parameters(
    table: str | None, topic: str | None, stream: str | None, label: str | None = None
) -> dict[str, str]:
    """The parameters that name a table, a topic or a stream."""
    given = {"table": table, "topic": topic, "stream": stream}
    named = {kind: name for kind, name in given.items() if name is not None}
    if len(named) != 1:
        raise Invalid("name exactly one of table, topic and stream", code="INVALID_TARGET")
    return named if label is None else {**named, "label": label}


def label_parameters(label: str | None) -> Mapping[str, str]:
    return NOTHING if label is None else {"label": label}


def json_body(body: Any) -> dict[str, Any]:
    """The options of a request with a JSON body."""
    return _body("application/json", msgspec.json.encode, body)


def msgpack_body(body: Any) -> dict[str, Any]:
    """The options of a request with a MessagePack body, and a response of either format."""
    options = _body(MSGPACK, msgspec.msgpack.encode, body)
    options["headers"]["accept"] = f"{MSGPACK}, application/json;q=0.5"
    return options


def _body(content_type: str, encode: Callable[[Any], bytes], body: Any) -> dict[str, Any]:
    try:
        return {"headers": {"content-type": content_type}, "content": encode(body)}
    except UnicodeEncodeError as error:
        raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None


def authorization(token: str | None, user: str | None, password: str | None) -> dict[str, str]:
    """The header with the credentials."""
    if token is not None and (user is not None or password is not None):
        raise Invalid("a token and a user are two kinds of credentials; give one of them")
    if token is not None:
        if not (token.isascii() and token.isprintable()):
            raise Invalid("the token is malformed: it contains characters other than printable ASCII")
        return {"authorization": f"Bearer {token}"}
    if user is None and password is None:
        return {}
    if user is None or password is None:
        raise Invalid("a user has a name and a password; give both")
    if ":" in user:
        raise Invalid(f"{user!r} cannot name a user: it contains a colon")
    try:
        return {"authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}
    except UnicodeEncodeError:
        raise Invalid("the user or the password is not valid UTF-8") from None
