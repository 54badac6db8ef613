"""Error messages of the service that several modules use.

Clients and test suites compare these texts, so they are reproduced to the letter, including typing mistakes.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.errors import Invalid

SERIALIZATION: Final = "SERIALIZATION"  # the code of an Invalid that is a SerializationException on the wire

INVALID: Final = "One or more parameter values were invalid: "
DETECTED: Final = "1 validation error detected: "
NOT_VALID: Final = "One or more parameter values are not valid. "
KEY_MISMATCH: Final = "The provided key element does not match the schema"
HASH_TOO_LONG: Final = INVALID + "Size of hashkey has exceeded the maximum size limit of2048 bytes"
RANGE_TOO_LONG: Final = INVALID + "Aggregated size of all range keys has exceeded the size limit of 1024 bytes"
NESTED_TOO_DEEP: Final = (
    "Nesting Levels have exceeded supported limits: Attributes in the item have nested levels beyond supported limit"
)
ITEM_TOO_LARGE: Final = "Item size has exceeded the maximum allowed size"
UPDATED_ITEM_TOO_LARGE: Final = "Item size to update has exceeded the maximum allowed size"
UNSUPPORTED_INDEX_KEY: Final = "The update expression attempted to update the secondary index key to unsupported type"
NUMBER_OVERFLOW: Final = "Number overflow. Attempting to store a number with magnitude larger than supported range"
NUMBER_UNDERFLOW: Final = "Number underflow. Attempting to store a number with magnitude smaller than supported range"
NUMBER_TOO_PRECISE: Final = "Attempting to store more than 38 significant digits in a Number"
NOT_A_NUMBER: Final = "The parameter cannot be converted to a numeric value"
VALUE_EMPTY: Final = "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
VALUE_AMBIGUOUS: Final = (
    "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes"
)
NULL_NOT_TRUE: Final = INVALID + "Null attribute value types must have the value of true"

# Since August 2026 these begin with DETECTED where a request writes one item (PutItem, UpdateItem, DeleteItem), and
# lose the text around them; not in transactions, batches and reads. moto records it in its pull requests 10198 and
# 10175; its tests of repeated sections and of overlapping paths are not marked as verified with the service.
_DETECTED: Final = re.compile(
    "|".join(
        (
            "(?:ExpressionAttributeValues contains invalid value: )?"
            f"(?P<set>{re.escape(INVALID)}An (?:string|number) set  may not be empty)(?: for key .*)?",
            "Value provided in ExpressionAttribute(?:Names|Values) unused in expressions: .*",
            "ExpressionAttributeValues must not be empty",
            "Invalid UpdateExpression: The expression can not be empty;",
            'Invalid UpdateExpression: The "[A-Z]+" section can only be used once in an update expression;',
            "Invalid UpdateExpression: Two document paths overlap with each other; .*",
        )
    ),
    re.DOTALL,
).fullmatch


def detected(error: Invalid) -> Invalid:
    """The error of a request that writes one item."""
    match = _DETECTED(str(error))
    return error if match is None else Invalid(DETECTED + (match["set"] or match[0]))


def malformed(message: str) -> Invalid:
    """A SerializationException: the JSON has a value of the wrong type."""
    return Invalid(message, code=SERIALIZATION)


def mismatched_index_key(name: str, expected: str, actual: str, index: str) -> Invalid:
    """An item's attribute does not have the type of the index's key."""
    return Invalid(
        f"{INVALID}Type mismatch for Index Key {name} Expected: {expected} Actual: {actual} IndexName: {index}"
    )


class RequestInvalid(Invalid):
    """An error that is found before a transaction begins, and so is no reason of its cancellation."""


class EmptyKey(RequestInvalid):
    """A key attribute is empty."""


def empty_key(name: str, kind: str) -> Invalid:
    """A key attribute of the table is an empty string or binary."""
    return EmptyKey(f"{NOT_VALID}{_empty(kind)} Key: {name}")


def empty_index_key(name: str, kind: str, index: str) -> Invalid:
    """A key attribute of an index is an empty string or binary."""
    return EmptyKey(
        f"{NOT_VALID}A value specified for a secondary index key is not supported. "
        f"{_empty(kind)} IndexName: {index}, IndexKey: {name}"
    )


def _empty(kind: str) -> str:
    noun = "string" if kind == "S" else "binary"
    return f"The AttributeValue for a key attribute cannot contain an empty {noun} value."
