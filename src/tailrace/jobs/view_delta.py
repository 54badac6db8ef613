"""The delta of a view: the algebra of retractions.

Theory of operation
-------------------
A change removes the old row, weight -1, and adds the new one, weight +1. Counts and sums add up by weight, in any order
and in any number of parts; so a delta can be computed by many tasks, merged, and added to the totals of the view. For
min, max and count(DISTINCT) a delta has each value with its weight: the count of a value can be retracted, the minimum
cannot. A view of rows has whole rows with weights: rows that are added and removed within a batch cancel out, and the
rest are the rows to put and to remove.

A join is bilinear: with A' = A + dA, the change of A join B is dA join B + A' join dB. So a task needs the other side's
rows under the keys that changed, and nothing else. In a LEFT JOIN the rows without a partner are a third part, which
changes where a key gets its first partner or loses its last.

Numbers are exact: sums are as wide as needed, and only displayed values are rounded. Pure: no storage here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.jobs.view_plan import ALL, KEY, GroupColumn, ViewPlan, projected
from tailrace.scalar.attribute import to_attribute
from tailrace.scalar.runtime import json_of
from tailrace.tables import number, value
from tailrace.tables.value import Item, Value

MARK: Final = "\\"  # the prefix of a key that is not a plain value of its column
WIDE: Final = Context(prec=600)  # any sum of items' numbers is exact in it
_SHOWN_BYTES: Final = 200  # of a value that is too long for a key
_decode_json: Final = msgspec.json.Decoder().decode
_pack: Final = msgspec.msgpack.Encoder(order="deterministic").encode

Side: TypeAlias = int
Token: TypeAlias = bytes
Sums: TypeAlias = list[Any]  # of an argument: values that are not NULL, numbers among them, the sum of those


# -- values


def settled(plain: Any) -> Any:
    """A value for grouping and comparison: a document is its JSON, as in SELECT."""
    if isinstance(plain, list | dict | set | frozenset):
        return json_of(plain).decode()
    return plain


def token(typed: Value) -> Token:
    """Bytes that are equal for equal values."""
    return _pack(typed)


def _number_text(text: str) -> bool:
    """Whether a text is the canonical form of a number."""
    if not text or not (text[-1].isdigit() and (text[0] == "-" or text[0].isdigit())):
        return False
    try:
        return number.canonical(text) == text
    except Invalid:
        return False


def key_text(typed: Value, kind: str | None) -> str:
    """A value in a key of type S. A value of the column's kind is unchanged; any other, also NULL, is a backslash and
    its JSON. Where the kind is not known, so is a text that looks like a number, TRUE or FALSE."""
    ((held, inner),) = typed.items()
    if held == "S":
        plain = bool(inner) and not inner.startswith(MARK)
        if plain and kind is None:
            plain = inner not in ("true", "false") and not _number_text(inner)
        if plain and kind in (None, "S"):
            return str(inner)
        return MARK + json_of(inner).decode()
    if held == "B":
        return f"{MARK}base64:{b64encode(inner).decode()}"
    text = "null" if held == "NULL" else inner if held == "N" else "true" if inner else "false"
    return text if held != "NULL" and kind in (None, held) else MARK + text


def _fitting(text: str, bytes_max: int) -> str:
    """The text, or of one that is too long for a key its beginning and a digest."""
    data = text.encode()
    if len(data) <= bytes_max:
        return text
    return f"{MARK}{data[:_SHOWN_BYTES].decode(errors='ignore')}…{sha256(data).hexdigest()}"


def group_text(values: Sequence[Value]) -> str:
    """All values of a group as one text, a JSON array."""
    parts = []
    for typed in values:
        ((held, inner),) = typed.items()
        if held == "N":
            parts.append(inner)
        elif held == "B":
            parts.append(json_of({"base64": b64encode(inner).decode()}).decode())
        else:
            parts.append("null" if held == "NULL" else json_of(inner).decode())
    return _fitting(f"[{','.join(parts)}]", limits.PARTITION_KEY_BYTES_MAX)


def key_item(plan: ViewPlan, values: Sequence[Value]) -> Item:
    """The key of a group's row, and beside a composed key the values themselves."""
    groups = plan.groups
    if not groups:
        return {KEY: {"S": ALL}}
    if len(groups) > 2:
        named = {group.name: typed for group, typed in zip(groups, values, strict=True)}
        return {KEY: {"S": group_text(values)}, **named}
    bounds = (limits.PARTITION_KEY_BYTES_MAX, limits.SORT_KEY_BYTES_MAX)
    return {
        group.name: _key_value(group, typed, bytes_max)
        for group, typed, bytes_max in zip(groups, values, bounds, strict=False)
    }


def _key_value(group: GroupColumn, typed: Value, bytes_max: int) -> Value:
    if group.verbatim is not None and group.verbatim in typed:
        return typed if group.verbatim != "S" else {"S": _fitting(typed["S"], bytes_max)}
    return {"S": _fitting(key_text(typed, group.kind), bytes_max)}


def order(typed: Value) -> bytes:
    """Bytes in the order of values: FALSE, TRUE, numbers, texts, binary."""
    ((held, inner),) = typed.items()
    if held == "BOOL":
        return b"\x01" + bytes((inner,))
    if held == "N":
        return b"\x02" + number.ordered(inner)
    return b"\x03" + inner.encode() if held == "S" else b"\x04" + bytes(inner)


def shown(total: Decimal) -> Value:
    """A sum as an item can hold it: of 38 digits, or NULL where it is too large for that."""
    rounded = Context(prec=number.DIGITS_MAX).plus(total)
    try:
        return {"N": number.canonical(str(rounded))} if rounded else {"N": "0"}
    except Invalid:
        return {"NULL": True}


def average(total: Decimal, count: int) -> Value:
    """The mean as SELECT has it, a double; written as the shortest decimal that means it."""
    try:
        return {"N": number.canonical(repr(float(Context(prec=60).divide(total, Decimal(count)))))}
    except (Invalid, OverflowError):
        return {"NULL": True}


# -- deltas


class GroupDelta:
    """The delta of one group: rows, sums by argument, values by argument."""

    __slots__ = ("kept", "n", "sums", "values")

    def __init__(self, values: list[Value], arguments: int) -> None:
        self.values = values
        self.n = 0
        self.sums: list[Sums] = [[0, 0, Decimal(0)] for _ in range(arguments)]
        self.kept: dict[tuple[int, Token], tuple[Value, int]] = {}

    @property
    def nothing(self) -> bool:
        """Whether all changes cancelled out."""
        return not self.n and not self.kept and not any(any(sums) for sums in self.sums)

    def keep(self, argument: int, typed: Value, weight: int) -> None:
        named = (argument, token(typed))
        before = self.kept.get(named)
        total = weight + (0 if before is None else before[1])
        if total:
            self.kept[named] = (typed, total)
        else:
            self.kept.pop(named, None)


class Delta:
    """The delta of a view, by group or by row; deltas can be merged."""

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        self.groups: dict[tuple[Token, ...], GroupDelta] = {}
        self.rows: dict[tuple[Token, ...], dict[Token, tuple[list[Value], Item, int]]] = {}
        self.joined: dict[tuple[Side, str, Token], dict[Token, tuple[Item, Item, int]]] = {}
        self.records = 0

    def __len__(self) -> int:
        kept = sum(len(group.kept) for group in self.groups.values())
        return len(self.groups) + kept + len(self.rows) + len(self.joined)

    # -- of one table

    def change(self, old: Item | None, new: Item | None) -> None:
        """Add a change of a row of the only source."""
        self.records += 1
        if old is not None:
            self.add(old, -1)
        if new is not None:
            self.add(new, 1)

    def add(self, item: Item, weight: int) -> None:
        """Add a row (weight 1) or remove it (-1); of a join, a pair of rows."""
        plan = self.plan
        if plan.where is not None and not plan.where(item):
            return
        values = [to_attribute(settled(group.of(item))) for group in plan.groups]
        tokens = tuple(map(token, values))
        if plan.rows:
            self._add_row(tokens, values, self._row(item, values), weight)
            return
        group = self.groups.get(tokens)
        if group is None:
            group = self.groups[tokens] = GroupDelta(values, len(plan.arguments))
        group.n += weight
        for at, argument in enumerate(plan.arguments):
            found = settled(argument.of(item))
            if found is None:
                continue
            sums = group.sums[at]
            sums[0] += weight
            if type(found) is int or type(found) is Decimal:
                sums[1] += weight
                sums[2] = WIDE.add(sums[2], found if weight == 1 else -found if weight == -1 else found * weight)
            if argument.kept:
                group.keep(at, to_attribute(found), weight)

    def _row(self, item: Item, values: list[Value]) -> Item:
        plan = self.plan
        if plan.star:
            return item
        row = key_item(plan, values)
        for name, of in plan.values:
            row[name] = to_attribute(of(item))
        return row

    def _add_row(self, tokens: tuple[Token, ...], values: list[Value], row: Item, weight: int) -> None:
        net(self.rows.setdefault(tokens, {}), value.digest(row), (values, row), weight)

    # -- of two tables

    def side(self, side: Side, old: Item | None, new: Item | None) -> None:
        """Add a change of a row of one of two sources; `join` computes its effect on the view later."""
        self.records += 1
        if old is not None:
            self.keep_side(side, old, -1)
        if new is not None:
            self.keep_side(side, new, 1)

    def keep_side(self, side: Side, item: Item, weight: int) -> None:
        source = self.plan.sources[side]
        key = {name: item[name] for name, _ in source.keys}
        row = projected(self.plan.used[side], item, side)
        text = join_text(self.plan, side, row)
        if text is None and (side == 1 or not self.plan.join or not self.plan.join.left):
            return  # it never has a partner, and is not visible without one
        self.keep_joined(side, text or "", key, row, weight)

    def keep_joined(self, side: Side, text: str, key: Item, row: Item, weight: int) -> None:
        """Add or remove a row of a side, under its join key."""
        net(self.joined.setdefault((side, text, token(key)), {}), value.digest(row), (key, row), weight)

    # -- merging

    def merge(self, other: Delta) -> None:
        """Add another part."""
        self.records += other.records
        for tokens, theirs in other.groups.items():
            group = self.groups.get(tokens)
            if group is None:
                self.groups[tokens] = theirs
                continue
            group.n += theirs.n
            for mine, sums in zip(group.sums, theirs.sums, strict=True):
                mine[0] += sums[0]
                mine[1] += sums[1]
                mine[2] = WIDE.add(mine[2], sums[2])
            for (argument, _), (typed, weight) in theirs.kept.items():
                group.keep(argument, typed, weight)
        for tokens, rows in other.rows.items():
            for digest, (values, row, weight) in rows.items():
                net(self.rows.setdefault(tokens, {}), digest, (values, row), weight)
        for named, rows_of_side in other.joined.items():
            for digest, (key, row, weight) in rows_of_side.items():
                net(self.joined.setdefault(named, {}), digest, (key, row), weight)

    # -- on the wire

    def wire(self) -> dict[str, Any]:
        """The form for the server: groups that changed, rows to put and remove, and each side's rows of a join."""
        groups = [_group_wire(group) for group in self.groups.values() if not group.nothing]
        rows = [_final(parts) for parts in self.rows.values() if parts]
        joined = [
            [side, text, *_final(parts)] for (side, text, _), parts in self.joined.items() if parts
        ]  # fmt: skip
        return {"groups": groups, "rows": rows, "joined": joined, "records": self.records}

    def parts(self, most: int) -> Iterable[dict[str, Any]]:
        """The same in chunks of about `most` entries, where they need not be applied in one transaction."""
        whole = self.wire()
        pieces: list[tuple[str, Any]] = []
        for group in whole["groups"]:
            values, n, sums, kept = group
            for at in range(0, max(len(kept), 1), most):
                first = at == 0
                nothing = [[0, 0, "0"] for _ in sums]
                pieces.append(("groups", [values, n if first else 0, sums if first else nothing, kept[at : at + most]]))
        pieces += [(kind, each) for kind in ("rows", "joined") for each in whole[kind]]
        piece: dict[str, Any] = _empty()
        size = 0
        for kind, each in pieces:
            piece[kind].append(each)
            size += 1 + (len(each[3]) if kind == "groups" else 0)
            if size >= most:
                yield piece
                piece, size = _empty(), 0
        if size:
            yield piece

    def packed(self) -> bytes:
        """The whole of it, for another process to `unpack`."""
        groups = [[group.values, *_group_wire(group)[1:]] for group in self.groups.values()]
        rows = [[list(each) for each in parts.values()] for parts in self.rows.values()]
        joined = [
            [side, text, [list(each) for each in parts.values()]] for (side, text, _), parts in self.joined.items()
        ]
        return msgspec.msgpack.encode([groups, rows, joined, self.records])


def _empty() -> dict[str, Any]:
    return {"groups": [], "rows": [], "joined": [], "records": 0}


def unpack(plan: ViewPlan, body: bytes) -> Delta:
    """The delta that `packed` wrote."""
    found = Delta(plan)
    groups, rows, joined, found.records = msgspec.msgpack.decode(body)
    for values, n, sums, kept in groups:
        group = GroupDelta(values, len(sums))
        group.n = n
        group.sums = [[count, numbers, Decimal(total)] for count, numbers, total in sums]
        for argument, typed, weight in kept:
            group.keep(argument, typed, weight)
        found.groups[tuple(map(token, values))] = group
    for parts in rows:
        for values, row, weight in parts:
            net(found.rows.setdefault(tuple(map(token, values)), {}), value.digest(row), (values, row), weight)
    for side, text, parts in joined:
        for key, row, weight in parts:
            net(found.joined.setdefault((side, text, token(key)), {}), value.digest(row), (key, row), weight)
    return found


def net(parts: dict[Token, Any], digest: Token, content: tuple[Any, ...], weight: int) -> None:
    """Add a weight to one of several contents; one with weight 0 is removed."""
    before = parts.get(digest)
    total = weight + (0 if before is None else before[-1])
    if total:
        parts[digest] = (*content, total)
    else:
        parts.pop(digest, None)


def _final(parts: Mapping[Token, tuple[Any, Item, int]]) -> list[Any]:
    """The final row of a key, or None where there is none."""
    left = [row for _, row, weight in parts.values() if weight > 0]
    named = next(iter(parts.values()))[0]
    return [named, left[0] if left else None]


def _group_wire(group: GroupDelta) -> list[Any]:
    sums = [[count, numbers, str(total)] for count, numbers, total in group.sums]
    kept = [[argument, typed, weight] for (argument, _), (typed, weight) in group.kept.items()]
    return [group.values, group.n, sums, kept]


# -- joins


def join_text(plan: ViewPlan, side: Side, row: Item) -> str | None:
    """The join key of a row, as text; None where one of its parts is NULL, which equals nothing."""
    assert plan.join is not None
    values = [settled(of(row)) for of in plan.join.keys[side]]
    if any(each is None for each in values):
        return None
    return group_text([to_attribute(each) for each in values])


Held: TypeAlias = Callable[[Side, str], list[Item]]  # the rows of a side under a key, as they were
Count: TypeAlias = Callable[[Side, str], int]  # and how many


def join(plan: ViewPlan, changes: Delta, held: Held, count: Count) -> None:
    """Compute the effect of the changes of both sides on the view, into the same delta. `held` is called only for the
    side other than the one that changed."""
    assert plan.join is not None
    by_key: dict[str, tuple[list[tuple[Item, int]], list[tuple[Item, int]]]] = {}
    for (side, text, _), parts in changes.joined.items():
        sides = by_key.setdefault(text, ([], []))
        sides[side].extend((row, weight) for _, row, weight in parts.values())
    for text, (first, second) in by_key.items():
        _join_key(plan, changes, text, first, second, held, count)


def _join_key(
    plan: ViewPlan,
    delta: Delta,
    text: str,
    first: list[tuple[Item, int]],
    second: list[tuple[Item, int]],
    held: Held,
    count: Count,
) -> None:
    assert plan.join is not None
    if not text:  # NULL: there are no partners, and the rows of the first side stand alone
        for row, weight in first:
            delta.add(row, weight)
        return
    if first:
        for other in held(1, text):
            for row, weight in first:
                delta.add({**row, **other}, weight)
    before = held(0, text) if second else []
    for row, weight in second:
        for other in before:
            delta.add({**other, **row}, weight)
        for other, theirs in first:
            delta.add({**other, **row}, weight * theirs)
    if not plan.join.left:
        return
    partners = count(1, text)
    alone_before = partners == 0
    alone_after = partners + sum(weight for _, weight in second) == 0
    if alone_before and not alone_after:
        for other in before:
            delta.add(other, -1)
    elif alone_after and not alone_before:
        for other in before:
            delta.add(other, 1)
    if alone_after:
        for row, weight in first:
            delta.add(row, weight)


# -- items on the wire


def typed_item(text: str | bytes | None) -> Item | None:
    """An item of DynamoDB's JSON, as the source gives it."""
    if text is None:
        return None
    found, _ = value.read_item(_decode_json(text))
    return found
