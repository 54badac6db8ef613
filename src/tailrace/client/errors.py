"""From a server's response back to the error that was raised there."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from tailrace.errors import (
    ConditionFailed,
    Conflict,
    Error,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    SequenceGap,
    StaleEpoch,
    TooLarge,
    TooMany,
    TransactionConflict,
    Unauthenticated,
    Unavailable,
)
from tailrace.sql.error import mark
from tailrace.sql.result import ColumnInfo, Result

_KINDS: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (Invalid, Unauthenticated, Forbidden, NotFound, Conflict, Gone, TooLarge, TooMany, Unavailable)
}
_KINDS |= {502: Unavailable, 504: Unavailable}  # of a proxy that does not reach the server
_EXCEPTIONS: dict[str, type[Error]] = {  # of the DynamoDB API, with status 400
    "ResourceNotFoundException": NotFound,
    "TableNotFoundException": NotFound,
    "ResourceInUseException": Conflict,
    "ConditionalCheckFailedException": Conflict,
    "TransactionCanceledException": Conflict,
    "TransactionConflictException": Conflict,
    "AccessDeniedException": Forbidden,
    "MissingAuthenticationTokenException": Unauthenticated,
    "IncompleteSignatureException": Unauthenticated,
    "InvalidSignatureException": Unauthenticated,
    "UnrecognizedClientException": Unauthenticated,
    "LimitExceededException": TooMany,
    "ThrottlingException": TooMany,
    "ProvisionedThroughputExceededException": TooMany,
}


class ErrorResponse(Protocol):
    """The part of a response that an error is made of."""

    @property
    def status_code(self) -> int: ...
    @property
    def reason_phrase(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def json(self) -> Any: ...


def error_of(response: ErrorResponse) -> Error:
    """The server's error, as it was raised there."""
    kind = _KINDS.get(response.status_code, Error)
    try:
        facts = response.json()
        if "__type" in facts:
            return _exception(facts, kind)
        described = facts["error"]
        error = (
            _numbered(response, described["code"])
            or _named(described)
            or (kind(described["message"], code=described["code"]))
        )
        error.facts = {name: fact for name, fact in described.items() if name not in ("code", "message")}
        if "line" in described:
            mark(
                error,
                [statement_result(each) for each in facts.get("results", [])],
                described["line"],
                described["column"],
            )
        return error
    except (ValueError, KeyError, TypeError):
        return kind(f"the server answered {response.status_code} {response.reason_phrase}")


def _numbered(response: ErrorResponse, code: str) -> Error | None:
    """An error of producers, which carries numbers."""
    fields = response.headers
    if code == StaleEpoch.code:
        current = int(fields["producer-epoch"])
        return StaleEpoch(current=current, received=int(fields.get("producer-received-epoch", current - 1)))
    if code == SequenceGap.code:
        return SequenceGap(expected=int(fields["producer-expected-seq"]), received=int(fields["producer-received-seq"]))
    return None


def _named(described: dict[str, Any]) -> Error | None:
    """An error of transactions, which programs catch by its class."""
    if described["code"] == TransactionConflict.code:
        return TransactionConflict(described["message"])
    return ConditionFailed(None, described["message"]) if described["code"] == ConditionFailed.code else None


def _exception(facts: dict[str, Any], kind: type[Error]) -> Error:
    """An error of the DynamoDB API."""
    name = facts["__type"].rpartition("#")[2]
    kind = _EXCEPTIONS.get(name, kind)
    message = facts.get("message") or facts.get("Message") or name
    if kind is Unauthenticated:
        message += "; give the server's token (--token or TAILRACE_TOKEN)"
    return kind(message, code=name)


def statement_result(encoded: dict[str, Any]) -> Result:
    """A statement's result, as the server encoded it; fields that not every result has are in `facts`."""
    facts = dict(encoded)
    columns = [ColumnInfo(column["name"], column["type"]) for column in facts.pop("columns")]
    parts = {name: facts.pop(name) for name in ("statement", "rows", "row_count", "message")}
    floats = [column.name for column in columns if column.type in ("DOUBLE", "FLOAT")]
    for row in parts["rows"] if floats else ():
        for name in floats:
            if isinstance(row[name], Decimal | int):
                row[name] = float(row[name])
    return msgspec.structs.replace(Result(**parts), columns=columns, facts=facts)
