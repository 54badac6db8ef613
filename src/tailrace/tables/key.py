"""The keys that items and index entries are stored under: bytes in the order in which the service reads them.

An item's key is `hash8 + len16 + hash bytes + range bytes`. `hash8` is the start of the MD5 that the service places a
partition by, so a scan visits partitions in the service's order; the length and the bytes separate partitions. The
range bytes sort as the range attribute does: UTF-8, raw, or `number.ordered`.

An index entry's key is `hash8 + len16 + hash parts + range parts + tie + item key`. Each range part has an end that
sorts below anything that could follow it, so that composite keys compare part by part. Items with the same index key
come in the order of the MD5 of their own key (`tie`), as in the service, and are distinguished by that key. Several
hash parts are each preceded by their length; a single one is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from operator import add
from typing import Any, Final, NamedTuple

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import messages, number
from tailrace.tables.definition import Definition, IndexDefinition
from tailrace.tables.value import Item, Value

HEAD_BYTES: Final = 10  # before the hash bytes: hash8 and len16

_SEED: Final = md5(b"Outliers", usedforsecurity=False)
_HASH_8: Final = 8
_BUCKETS: Final = 4096  # the service's parts of the hash space, that segments are made of
_END: Final = b"\x00\x00"
_RECENT_BYTES_MAX: Final = 64  # of the partition keys that are remembered, which bounds the memory
_ESCAPED_NUL: Final = b"\x00\xff"


class Bounds(NamedTuple):
    """The bounds of a scan: from `start` on or from behind `after`, below `before`; None: unbounded."""

    start: bytes | None
    after: bytes | None
    before: bytes | None


# -- items


def item_key(definition: Definition, item: Item) -> bytes:
    """The key of a whole item."""
    kinds = definition.kinds
    name = definition.hash
    kind = kinds[name]
    value = item.get(name)
    if value is None or kind not in value:
        raise _unkeyed(name, kind, value)
    key = _partition(_hash_part(name, kind, value[kind]))
    if definition.range is None:
        return key
    name = definition.range
    kind = kinds[name]
    value = item.get(name)
    if value is None or kind not in value:
        raise _unkeyed(name, kind, value)
    return key + _range_part(name, kind, value[kind])


def stored_keys(definition: Definition, hashes: list[bytes], ranges: list[bytes] | None = None) -> list[bytes]:
    """The keys of many items, by the contents of their key attributes, which are checked: UTF-8, raw bytes, or the
    canonical texts of numbers."""
    if definition.kinds[definition.hash] == "N":
        hashes = [number.hashed(text.decode()) for text in hashes]
    if ranges is None or definition.range is None:
        return list(map(_placed, hashes))
    if definition.kinds[definition.range] == "N":
        ranges = [number.ordered(text.decode()) for text in ranges]
    return list(map(add, map(_partition, hashes), ranges))


def key_of(definition: Definition, key: Item) -> bytes:
    """The key of the item that a Key parameter names; it has exactly the key's attributes."""
    kinds = definition.kinds
    name = definition.hash
    kind = kinds[name]
    value = key.get(name)
    if value is None or kind not in value or len(key) != len(definition.keys):
        raise Invalid(messages.KEY_MISMATCH)
    hash_bytes = _hash_part(name, kind, value[kind])
    if definition.range is None:
        return _partition(hash_bytes)
    name = definition.range
    kind = kinds[name]
    value = key.get(name)
    if value is None or kind not in value:
        raise Invalid(messages.KEY_MISMATCH)
    return _partition(hash_bytes) + _range_part(name, kind, value[kind])


def _unkeyed(name: str, kind: str, value: Value | None) -> Invalid:
    if value is None:
        return Invalid(f"{messages.INVALID}Missing the key {name} in the item")
    (actual,) = value
    return Invalid(f"{messages.INVALID}Type mismatch for key {name} expected: {kind} actual: {actual}")


def _hash_part(name: str, kind: str, inner: Any) -> bytes:
    if kind == "N":
        return number.hashed(inner)
    if not inner:
        raise messages.empty_key(name, kind)
    data: bytes = inner.encode() if kind == "S" else inner
    if len(data) > limits.PARTITION_KEY_BYTES_MAX:
        raise Invalid(messages.HASH_TOO_LONG)
    return data


def _range_part(name: str, kind: str, inner: Any) -> bytes:
    if kind == "N":
        return number.ordered(inner)
    if not inner:
        raise messages.empty_key(name, kind)
    data: bytes = inner.encode() if kind == "S" else inner
    if len(data) > limits.SORT_KEY_BYTES_MAX:
        raise Invalid(messages.RANGE_TOO_LONG)
    return data


# -- index entries


def index_key(definition: Definition, index: IndexDefinition, item: Item, item_key: bytes) -> bytes | None:
    """The key of an item's entry in an index, or None if it has none because it lacks an attribute of the index's key.

    Raises if such an attribute has the wrong type, is empty or is too long.
    """
    hashes = _index_values(definition, index, index.hash, item)
    ranges = _index_values(definition, index, index.range, item)
    if hashes is None or ranges is None:
        return None
    head = partition(hashes)
    tail = b"".join([_ended(value) for value in ranges])
    if len(tail) > limits.SORT_KEY_BYTES_MAX and any(
        len(_bytes(value)) > limits.SORT_KEY_BYTES_MAX for value in ranges
    ):
        raise Invalid(messages.RANGE_TOO_LONG)
    return head + tail + _tie(definition, item, item_key) + item_key


def _tie(definition: Definition, item: Item, item_key: bytes) -> bytes:
    """The order of items with the same index key: the start of the MD5 of the item's own key."""
    if definition.range is None:
        return item_key[:_HASH_8]
    hasher = _SEED.copy()
    if definition.kinds[definition.range] == "N":
        hash_bytes = int.from_bytes(item_key[_HASH_8:HEAD_BYTES])
        hasher.update(item_key[HEAD_BYTES : HEAD_BYTES + hash_bytes])
        hasher.update(number.hashed(item[definition.range]["N"]))
    else:
        hasher.update(item_key[HEAD_BYTES:])
    return hasher.digest()[:_HASH_8]


def _index_values(
    definition: Definition, index: IndexDefinition, names: tuple[str, ...], item: Item
) -> list[Value] | None:
    values: list[Value] | None = []
    for name in names:
        value = item.get(name)
        if value is None:
            values = None  # but continue: the other attributes are still checked
            continue
        kind = definition.kinds[name]
        inner = value.get(kind)
        if inner is None:
            (actual,) = value
            raise messages.mismatched_index_key(name, kind, actual, index.name)
        if not inner:
            raise messages.empty_index_key(name, kind, index.name)
        if values is not None:
            values.append(value)
    return values


def _bytes(value: Value) -> bytes:
    """A range part as the table has it."""
    ((kind, inner),) = value.items()
    if kind == "N":
        return number.ordered(inner)
    data: bytes = inner.encode() if kind == "S" else inner
    return data


def _escaped(value: Value) -> bytes:
    data = _bytes(value)
    return data.replace(b"\x00", _ESCAPED_NUL) if "N" not in value else data


def _ended(value: Value) -> bytes:
    """A range part as an index has it; no part begins another."""
    return _escaped(value) if "N" in value else _escaped(value) + _END


# -- ranges of keys


def partition(hashes: Sequence[Value]) -> bytes:
    """The prefix of the keys of one partition, in a table or an index, by the values of its hash attributes; raises if
    one is too long."""
    parts = [_hash_bytes(value) for value in hashes]
    for part in parts:
        if len(part) > limits.PARTITION_KEY_BYTES_MAX:
            raise Invalid(messages.HASH_TOO_LONG)
    if len(parts) == 1:
        return _partition(parts[0])
    return _partition(b"".join([len(part).to_bytes(2) + part for part in parts]))


def _hash_bytes(value: Value) -> bytes:
    ((kind, inner),) = value.items()
    if kind == "N":
        return number.hashed(inner)
    data: bytes = inner.encode() if kind == "S" else inner
    return data


def _partition(hash_bytes: bytes) -> bytes:
    return _recent(hash_bytes) if len(hash_bytes) <= _RECENT_BYTES_MAX else _placed(hash_bytes)


def _placed(hash_bytes: bytes) -> bytes:
    hasher = _SEED.copy()
    hasher.update(hash_bytes)
    return hasher.digest()[:8] + len(hash_bytes).to_bytes(2) + hash_bytes


_recent: Final = lru_cache(maxsize=4096)(_placed)  # MD5 takes longer than finding a partition that was used before


def range_bounds(
    prefix: bytes, *, index: bool, equal: Sequence[Value] = (), op: str | None = None, operands: Sequence[Value] = ()
) -> Bounds:
    """The keys of a partition that meet a condition on its range attributes: the leading ones are `equal` to these
    values, and the next one is `op` (=, <, <=, >, >=, BETWEEN, begins_with) to the operands.

    In a table there is one range attribute and nothing follows it; in an index more parts and the item's key follow.
    """
    for value in equal if index else ():
        prefix += _ended(value)
    if not index and equal:
        op, operands = "=", equal
    if op is None:
        return Bounds(prefix, None, successor(prefix))
    if op == "begins_with":
        begin = prefix + (_escaped(operands[0]) if index else _bytes(operands[0]))
        return Bounds(begin, None, successor(begin))
    low = prefix + (_ended(operands[0]) if index else _bytes(operands[0]))
    if op == "=":
        return Bounds(low, None, _behind(low, index))
    if op == "<":
        return Bounds(prefix, None, low)
    if op == "<=":
        return Bounds(prefix, None, _behind(low, index))
    if op == ">=":
        return Bounds(low, None, successor(prefix))
    if op == ">":
        return Bounds(_behind(low, index), None, successor(prefix))
    assert op == "BETWEEN", op
    high = prefix + (_ended(operands[1]) if index else _bytes(operands[1]))
    return Bounds(low, None, _behind(high, index))


def _behind(key: bytes, index: bool) -> bytes | None:
    """The first key after the one of this range value: in an index all that begin with it have that value."""
    return successor(key) if index else key + b"\x00"


def successor(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        return None
    return kept[:-1] + bytes((kept[-1] + 1,))


def hash_of(kind: str, content: str | bytes) -> bytes:
    """The hash of a partition key, by which segments are divided."""
    return _partition(_hash_part("", kind, content))[:_HASH_8]


def segment_bounds(segment: int, total: int) -> tuple[bytes | None, bytes | None]:
    """Where a segment of a parallel scan starts, and before which key it ends."""
    return _boundary(segment, total), _boundary(segment + 1, total)


def _boundary(segment: int, total: int) -> bytes | None:
    if segment == 0 or segment == total:
        return None
    if total <= _BUCKETS:
        return (-(-_BUCKETS * segment // total) << 52).to_bytes(8)
    return (-(-(1 << 64) * segment // total)).to_bytes(8)


def ttl_key(seconds: str, item_key: bytes) -> bytes:
    """The key of an item in the order of expiry, by the canonical number of seconds."""
    return number.ordered(seconds) + item_key
