"""Table ARNs: a request may name tables by ARN, and its response must then use the same ARNs.

Operations work with table names. For requests that use ARNs, the names in the response are replaced afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.http.dynamodb.shape import table_name

_BY_TABLE: Final = ("Responses", "UnprocessedKeys", "UnprocessedItems", "ItemCollectionMetrics")
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def with_given_arns(request: Any, response: bytes | dict[str, Any]) -> bytes | dict[str, Any]:
    """The response to a valid request, with the request's ARNs in place of the table names."""
    arns = {table_name(text): text for text in _named(request) if text.startswith("arn:")}
    if not arns or not response:
        return response
    known = _decoded(response) if isinstance(response, bytes) else response
    for member in _BY_TABLE:
        held = known.get(member)
        if isinstance(held, dict):
            known[member] = {arns.get(name, name): each for name, each in held.items()}
    consumed = known.get("ConsumedCapacity")
    for each in [consumed] if isinstance(consumed, dict) else consumed or ():
        each["TableName"] = arns.get(each["TableName"], each["TableName"])
    return known


def _named(request: Any) -> list[str]:
    """The table names and ARNs in a request."""
    named = [request.get("TableName"), *(request.get("RequestItems") or ())]
    for action in request.get("TransactItems") or ():
        named += [fields.get("TableName") for fields in action.values() if isinstance(fields, dict)]
    return [text for text in named if isinstance(text, str)]


def _decoded(response: bytes) -> dict[str, Any]:
    """An encoded response, decoded except for its items."""
    known: dict[str, Any] = dict(_decode(response))
    if "ConsumedCapacity" in known:
        known["ConsumedCapacity"] = msgspec.json.decode(known["ConsumedCapacity"])
    return known
