"""Errors in the service's format: a type, which SDKs turn into an exception, a status, and further members.

An error whose code is the name of one of the service's exceptions becomes that exception.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.errors import (
    ConditionFailed,
    Conflict,
    DuplicateItem,
    Error,
    Forbidden,
    InUse,
    Invalid,
    IteratorExpired,
    LimitExceeded,
    NotFound,
    TableNotFound,
    TokenMismatch,
    TooLarge,
    TooMany,
    TransactionCanceled,
    Trimmed,
    Unauthenticated,
    Unavailable,
    WrongToken,
)

_TABLES: Final = "com.amazonaws.dynamodb.v20120810#"
_SERVICE: Final = "com.amazon.coral.service#"
_VALIDATE: Final = "com.amazon.coral.validate#"
_AVAILABILITY: Final = "com.amazon.coral.availability#"

_PREFIXES: Final = {
    "ValidationException": _VALIDATE,
    "SerializationException": _SERVICE,
    "UnknownOperationException": _SERVICE,
    "AccessDeniedException": _SERVICE,
    "MissingAuthenticationTokenException": _SERVICE,
    "IncompleteSignatureException": _SERVICE,
    "InvalidSignatureException": _SERVICE,
    "UnrecognizedClientException": _SERVICE,
    "ExpiredTokenException": _SERVICE,
    "ServiceUnavailableException": _AVAILABILITY,
    "ThrottlingException": _AVAILABILITY,
}
NOT_FOUND: Final = "Requested resource not found"
_CAPITAL: Final = frozenset(("SerializationException", "AccessDeniedException", "TransactionCanceledException"))

_KINDS: Final[tuple[tuple[type[Error], str], ...]] = (  # the first that fits
    (TableNotFound, "ResourceNotFoundException"),
    (NotFound, "ResourceNotFoundException"),
    (InUse, "ResourceInUseException"),
    (DuplicateItem, "DuplicateItemException"),
    (ConditionFailed, "ConditionalCheckFailedException"),
    (TransactionCanceled, "TransactionCanceledException"),
    (TokenMismatch, "IdempotentParameterMismatchException"),
    (Conflict, "TransactionConflictException"),
    (LimitExceeded, "LimitExceededException"),
    (TooMany, "ThrottlingException"),
    (Trimmed, "TrimmedDataAccessException"),
    (IteratorExpired, "ExpiredIteratorException"),
    (TooLarge, "ValidationException"),
    (Forbidden, "AccessDeniedException"),
    (WrongToken, "UnrecognizedClientException"),
    (Unauthenticated, "MissingAuthenticationTokenException"),
    (Unavailable, "ServiceUnavailableException"),
    (Invalid, "ValidationException"),
)
_AUTHENTICATION: Final = {  # the codes of `auth.signature`
    "MISSING_TOKEN": "MissingAuthenticationTokenException",
    "UNRECOGNIZED_CLIENT": "UnrecognizedClientException",
    "INCOMPLETE_SIGNATURE": "IncompleteSignatureException",
    "INVALID_SIGNATURE": "InvalidSignatureException",
}
_STATUS: Final = {"ServiceUnavailableException": 503, "InternalServerError": 500}


def exception(error: Error) -> str:
    """The service's name for an error."""
    if error.code == "SERIALIZATION":
        return "SerializationException"
    if error.code.endswith("Exception"):
        return error.code
    if isinstance(error, Unauthenticated) and error.code in _AUTHENTICATION:
        return _AUTHENTICATION[error.code]
    for kind, name in _KINDS:
        if isinstance(error, kind):
            return name
    return "InternalServerError"


def body(name: str, message: str | None = None) -> dict[str, Any]:
    """The JSON body of an error."""
    response: dict[str, Any] = {"__type": _PREFIXES.get(name, _TABLES) + name}
    if message:
        response["Message" if name in _CAPITAL else "message"] = message
    return response


def response(error: Error, *, names_table: bool = False) -> tuple[int, dict[str, Any]]:
    """Status and body. `names_table`: the operation's error names the table that was not found."""
    name = exception(error)
    shown = body(name, _message(error, names_table))
    if isinstance(error, ConditionFailed) and error.item is not None:
        shown["Item"] = error.item
    elif isinstance(error, TransactionCanceled):
        shown["CancellationReasons"] = [_reason(*reason) for reason in error.reasons]
    return _STATUS.get(name, 400), shown


def _message(error: Error, names_table: bool) -> str:
    if isinstance(error, TableNotFound):
        if str(error) != str(TableNotFound(error.name)):
            return str(error)  # already in the service's words
        return f"Requested resource not found: Table: {error.name} not found" if names_table else NOT_FOUND
    return str(error)


def _reason(code: str, message: str | None, item: Any) -> dict[str, Any]:
    reason: dict[str, Any] = {"Code": code}
    if message is not None:
        reason["Message"] = message
    if item is not None:
        reason["Item"] = item
    return reason
