"""Tables that a request names by their ARNs: the answer names them in the same way.

Operations know tables by their names alone. What a request called them is put back into the answer afterwards, for the
few requests that use ARNs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.http.dynamodb.shape import table_name

_BY_TABLE: Final = ("Responses", "UnprocessedKeys", "UnprocessedItems", "ItemCollectionMetrics")
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def as_given(request: Any, answer: bytes | dict[str, Any]) -> bytes | dict[str, Any]:
    """The answer to a request that has passed its shape, with the ARNs that it gave in place of the tables' names."""
    arns = {table_name(text): text for text in _named(request) if text.startswith("arn:")}
    if not arns or not answer:
        return answer
    known = _decoded(answer) if isinstance(answer, bytes) else answer
    for member in _BY_TABLE:
        held = known.get(member)
        if isinstance(held, dict):
            known[member] = {arns.get(name, name): each for name, each in held.items()}
    consumed = known.get("ConsumedCapacity")
    for each in [consumed] if isinstance(consumed, dict) else consumed or ():
        each["TableName"] = arns.get(each["TableName"], each["TableName"])
    return known


def _named(request: Any) -> list[str]:
    """How a request names its tables."""
    named = [request.get("TableName"), *(request.get("RequestItems") or ())]
    for action in request.get("TransactItems") or ():
        named += [fields.get("TableName") for fields in action.values() if isinstance(fields, dict)]
    return [text for text in named if isinstance(text, str)]


def _decoded(answer: bytes) -> dict[str, Any]:
    """An answer whose items are left as they are."""
    known: dict[str, Any] = dict(_decode(answer))
    if "ConsumedCapacity" in known:
        known["ConsumedCapacity"] = msgspec.json.decode(known["ConsumedCapacity"])
    return known
