"""From a server's answer back to the error that was raised there."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import msgspec

from tailrace.errors import (
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
_EXCEPTIONS: dict[str, type[Error]] = {  # what the tables' protocol says with status 400
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


def raised(answer: httpx.Response) -> Error:
    """The server's error, as it was raised there."""
    kind = _KINDS.get(answer.status_code, Error)
    try:
        facts = answer.json()
        if "__type" in facts:
            return _exception(facts, kind)
        told = facts["error"]
        error = _numbered(answer, told["code"]) or kind(told["message"], code=told["code"])
        error.facts = {name: fact for name, fact in told.items() if name not in ("code", "message")}
        if "line" in told:
            mark(error, [result(each) for each in facts.get("results", [])], told["line"], told["column"])
        return error
    except (ValueError, KeyError, TypeError):
        return kind(f"the server answered {answer.status_code} {answer.reason_phrase}")


def _numbered(answer: httpx.Response, code: str) -> Error | None:
    """An error of producers, which carries numbers."""
    fields = answer.headers
    if code == StaleEpoch.code:
        current = int(fields["producer-epoch"])
        return StaleEpoch(current=current, received=int(fields.get("producer-received-epoch", current - 1)))
    if code == SequenceGap.code:
        return SequenceGap(expected=int(fields["producer-expected-seq"]), received=int(fields["producer-received-seq"]))
    return None


def _exception(facts: dict[str, Any], kind: type[Error]) -> Error:
    """An error of the tables' protocol."""
    name = facts["__type"].rpartition("#")[2]
    kind = _EXCEPTIONS.get(name, kind)
    message = facts.get("message") or facts.get("Message") or name
    if kind is Unauthenticated:
        message += "; give the server's token (--token or TAILRACE_TOKEN)"
    return kind(message, code=name)


def result(told: dict[str, Any]) -> Result:
    """A statement's result, as it was made there; what is not a part of every result is in `facts`."""
    facts = dict(told)
    columns = [ColumnInfo(column["name"], column["type"]) for column in facts.pop("columns")]
    parts = {name: facts.pop(name) for name in ("statement", "rows", "row_count", "message")}
    floats = [column.name for column in columns if column.type in ("DOUBLE", "FLOAT")]
    for row in parts["rows"] if floats else ():
        for name in floats:
            if isinstance(row[name], Decimal | int):
                row[name] = float(row[name])
    return msgspec.structs.replace(Result(**parts), columns=columns, facts=facts)
