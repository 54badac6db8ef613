"""The door of `POST /v1/api/sql`: statements in, their results out, as JSON.

    {"sql": "SELECT * FROM orders WHERE total > ?", "params": [100]}
    {"status": "success", "results": [{"statement": ..., "columns": ..., "rows": ..., ...}], "took_ms": 1.5}

Several statements may be sent at once; the first that fails ends the run. Its error comes with its own status, and with
the results of those before it, which stay done. A parameter is a JSON value; `{"$base64": "..."}` stands for bytes. The
whole request is handled in a thread: whoever asks much holds nobody else up.
"""

from __future__ import annotations

import binascii
import time
from base64 import b64decode
from decimal import Decimal
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error, Invalid, NotAllowed, TooLarge
from tailrace.http import errors
from tailrace.http.dynamodb.apart import Workers
from tailrace.http.message import Headers, Request, Response
from tailrace.sql.session import Result, Session, marked

THREADS: Final = 4  # that run statements at once
REQUESTS_MAX: Final = 128  # under way and waiting; more is 503
BYTES_KEY: Final = "$base64"

_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    params: list[Any] = []


_decoder: Final = msgspec.json.Decoder(SqlBody, float_hook=Decimal)  # numbers keep all their digits
_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


class SqlDoor:
    """Answers requests at `/v1/api/sql`; what may be done is up to the commands."""

    def __init__(self, db: Database, *, threads: int = THREADS, requests_max: int = REQUESTS_MAX) -> None:
        self._db = db
        self._workers = Workers(threads, requests_max)

    async def __call__(self, request: Request, principal: Principal) -> Response:
        try:
            if request.method != b"POST":
                raise NotAllowed('SQL is sent with POST, as JSON: {"sql": "…"}', allow="POST, OPTIONS")
            if len(request.body) > limits.BODY_BYTES_MAX:
                raise TooLarge(f"the body is larger than {limits.BODY_BYTES_MAX} bytes; send less")
            return await self._workers.run(lambda: self._answer(request.body, principal), len(request.body))
        except Error as error:
            return _failed(error)

    def close(self) -> None:
        """Finish what is under way; what waits is given up."""
        self._workers.close()

    def _answer(self, body: bytes, principal: Principal) -> Response:
        began = time.perf_counter()
        try:
            asked = _read(body)
            session = Session(lambda command: self._db.execute(command, principal))
            results = session.run(asked.sql, [_parameter(each) for each in asked.params])
        except Error as error:
            return _failed(error)
        took_ms = round((time.perf_counter() - began) * 1000, 3)
        answer = {"status": "success", "results": [_shown(each) for each in results], "took_ms": took_ms}
        return Response(200, _JSON, _encoder.encode(answer))


def _read(body: bytes) -> SqlBody:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f'the body is not the JSON that is wanted here, {{"sql": "…", "params": […]}}: {error}') from None


def _parameter(given: Any) -> Any:
    if isinstance(given, dict) and given.keys() == {BYTES_KEY}:
        try:
            return b64decode(given[BYTES_KEY], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Invalid(f"a parameter with {BYTES_KEY} holds base64 text; this one does not") from None
    return given


def _shown(result: Result) -> dict[str, Any]:
    return {
        **result.facts,
        "statement": result.statement,
        "columns": [{"name": column.name, "type": column.type} for column in result.columns],
        "rows": result.rows,
        "row_count": result.row_count,
        "message": result.message,
    }


def _failed(error: Error) -> Response:
    """The house's answer to an error, and where in the text it is, and what was done before it."""
    response = errors.response(error)
    done, line, column = marked(error)
    told = msgspec.json.decode(response.body)["error"]
    if line is not None:
        told |= {"line": line, "column": column}
    body = {"status": "error", "error": told, "results": [_shown(each) for each in done]}
    return Response(response.status, response.headers, _encoder.encode(body))
