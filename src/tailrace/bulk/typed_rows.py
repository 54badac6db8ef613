"""Rows of a table with types: the images of its changes, or its items, as structs, straight from the stored bytes.

A schema says what is wanted, and Spark's words are used: `keys`, `before` and `after` are the images of a change, as
structs or as variants, beside the columns of the change itself. In rows of items, and in changes that are read as rows,
each attribute is a column, and what is known about the row has names that begin with ``_``.

Records of common shapes are converted together (`shape_columns`), all others one by one (`values`). A value that its
column does not hold is an error that names the table, the key, the sequence and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk import variant
from tailrace.bulk.columns import (
    CHANGES,
    NUMPY,
    DecodedEntry,
    DecodedRecord,
    change_facts,
    check_events,
    decoded_entries,
    decoded_items,
)
from tailrace.bulk.entries import bounds_of, data_of
from tailrace.bulk.text import TypedItem
from tailrace.bulk.values import ItemColumns, Misfit, item_converter, not_typed, shown_item
from tailrace.errors import Corrupt, Invalid
from tailrace.tables.change import EVENTS, HEAD_BYTES

if NUMPY:
    from tailrace.bulk import shapes
    from tailrace.bulk.shape_columns import TypedColumns

MARK: Final = "_"  # the prefix of what is known about a row
IMAGES: Final = ("keys", "before", "after")
SEQUENCE: Final = "_sequence"
FACTS: Final = tuple(CHANGES.names[:-3])
_REMOVE: Final = EVENTS.index("REMOVE")
_ROW: Final = -1

Image = tuple[str, int, pa.StructType]  # the column, the number of the image, and its type


@dataclass(frozen=True)
class TypedRows:
    """Converts entries, or stored items, of a table to rows of this schema."""

    table: str
    schema: pa.Schema
    strict: bool = False  # the schema was inferred: an attribute that it lacks is an error

    def of_changes(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """The changes of these entries, which are of one log, in order."""
        images = self._images()
        facts, columns = _TypedChanges(self, images).rows(entries)
        names = {
            **dict(zip(FACTS, facts, strict=True)),
            **dict(zip([name for name, _, _ in images], columns, strict=True)),
        }
        if not self.are_rows:
            arrays = [names[name] for name in self.schema.names]
        else:
            attributes = dict(zip(self.attributes, columns[0].flatten(), strict=True)) if columns else {}
            arrays = [attributes[name] if name in attributes else names[name[1:]] for name in self.schema.names]
        return _batch(arrays, self.schema)

    def of_items(self, bodies: pa.Array, keys: tuple[str, ...], sequence: int) -> pa.RecordBatch:
        """These stored items, as they were at a sequence."""
        attributes = [name for name in self.schema.names if name != SEQUENCE]
        kind = pa.struct([self.schema.field(name) for name in attributes])
        if not attributes:
            return _batch([pa.repeat(pa.scalar(sequence, pa.int64()), len(bodies))], self.schema)
        columns = dict(zip(attributes, _TypedItems(self, kind, keys, sequence).rows(bodies).flatten(), strict=True))
        if SEQUENCE in self.schema.names:
            columns[SEQUENCE] = pa.repeat(pa.scalar(sequence, pa.int64()), len(bodies))
        return _batch([columns[name] for name in self.schema.names], self.schema)

    @property
    def are_rows(self) -> bool:
        """Whether attributes are columns."""
        return not set(self.schema.names) <= {*FACTS, *IMAGES}

    @property
    def attributes(self) -> list[str]:
        """The columns that are attributes."""
        about = {f"{MARK}{name}" for name in FACTS}
        return [name for name in self.schema.names if name not in about]

    def _images(self) -> list[Image]:
        if self.are_rows:
            return [("", _ROW, pa.struct([self.schema.field(name) for name in self.attributes]))]
        return [
            (name, number, self.schema.field(name).type)
            for number, name in enumerate(IMAGES)
            if name in self.schema.names
        ]

    def place(self, keys: TypedItem, sequence: int) -> str:
        """Where an error is."""
        return f"table {self.table!r}, key {shown_item(keys)}, sequence {sequence}"


def _batch(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- changes


class _TypedChanges:
    """The changes of entries: the facts about each, and some of its images."""

    def __init__(self, typed: TypedRows, images: list[Image]) -> None:
        self._typed = typed
        self._images = images
        self._columns = [_columns(kind, strict=typed.strict) for _, _, kind in images]

    def rows(self, entries: pa.RecordBatch) -> tuple[list[pa.Array], list[pa.Array]]:
        body = entries["body"]
        if not NUMPY or not shapes.suits(body):
            return self._one_by_one(entries)
        made = TypedColumns([(number, kind) for _, number, kind in self._images], strict=self._typed.strict)
        found = shapes.ShapeBatch(made, data_of(body), bounds_of(body), HEAD_BYTES).changes()
        if found is None:
            return self._one_by_one(entries)
        mine = entries.take(found.fit) if len(found.others) else entries
        facts = change_facts(mine, found.counts, found.events, found.principals)
        if not len(found.others):
            return facts, found.columns
        others, columns = self._one_by_one(entries.take(found.others))
        facts = _joined(facts, others)
        order = pc.sort_indices(
            pa.RecordBatch.from_arrays([facts[0], facts[3]], names=["offset", "index"]),
            [("offset", "ascending"), ("index", "ascending")],
        )
        return [each.take(order) for each in facts], [each.take(order) for each in _joined(found.columns, columns)]

    def _one_by_one(self, entries: pa.RecordBatch) -> tuple[list[pa.Array], list[pa.Array]]:
        counts: list[int] = []
        events: list[int] = []
        principals: list[str] = []
        made: list[list[pa.Array]] = [[pa.array([], kind)] for _, _, kind in self._images]
        for chunk in decoded_entries(entries["body"]):  # small ones: values are converted while they are in the caches
            records = [record for entry in chunk for record in entry.records]
            events += [record.event for record in records]
            try:
                for arrays, (_, image, _), columns in zip(made, self._images, self._columns, strict=True):
                    arrays.append(columns([_image(record, image) for record in records]))
            except Misfit:
                raise self._misfit(entries.slice(len(counts)), chunk) from None
            counts += [len(entry.records) for entry in chunk]
            principals += [entry.by for entry in chunk]
        check_events(events)
        facts = change_facts(entries, counts, bytes(events), pa.array(principals, pa.string()))
        return facts, [pa.concat_arrays(arrays) for arrays in made]

    def _misfit(self, entries: pa.RecordBatch, decoded: list[DecodedEntry]) -> Invalid:
        """The error for the first value that does not fit."""
        for number, entry in enumerate(decoded):
            for record in entry.records:
                for name, image, kind in self._images:
                    item = _image(record, image)
                    try:
                        _ = None if item is None else _converter(kind, strict=self._typed.strict)(item)
                    except Misfit as misfit:
                        place = self._typed.place(record.keys, entries["next"][number].as_py() - 1)
                        return not_typed(misfit, place, name)
        raise AssertionError("one of them does not fit")


def _columns(kind: pa.DataType, *, strict: bool) -> Callable[[Sequence[TypedItem | None]], pa.Array]:
    """Makes a column of items."""
    if not variant.is_variant(kind):
        return ItemColumns(kind, strict=strict).of
    convert = _converter(kind, strict=strict)
    return lambda items: pa.array([None if item is None else convert(item) for item in items], kind)


def _joined(first: Sequence[pa.Array], second: Sequence[pa.Array]) -> list[pa.Array]:
    return [pa.concat_arrays(both) for both in zip(first, second, strict=True)]


def _converter(kind: pa.DataType, *, strict: bool) -> Callable[[TypedItem], Any]:
    if not variant.is_variant(kind):
        return item_converter(kind, strict=strict)

    def convert(item: TypedItem) -> dict[str, bytes]:
        try:
            return variant.of_item(item)
        except ArithmeticError:
            raise variant_misfit(item) from None

    return convert


def variant_misfit(item: TypedItem) -> Misfit:
    """The attribute that a variant cannot hold."""
    for name, value in item.items():
        try:
            variant.of_value(value)
        except ArithmeticError:
            misfit = Misfit(None, value)
            misfit.path.append(name)
            return misfit
    raise AssertionError("one of them does not fit")


def _image(record: DecodedRecord, image: int) -> TypedItem | None:
    if image == _ROW:
        found = record.old if record.event == _REMOVE else record.new
        return record.keys if found is None else found
    return (record.keys, record.old, record.new)[image]


# -- items


class _TypedItems:
    """Stored items as a struct of some attributes."""

    def __init__(self, typed: TypedRows, kind: pa.StructType, keys: tuple[str, ...], sequence: int) -> None:
        self._typed = typed
        self._kind = kind
        self._keys = keys
        self._sequence = sequence

    def rows(self, bodies: pa.Array) -> pa.Array:
        if not NUMPY or not shapes.suits(bodies):
            return self._one_by_one(bodies)
        made = TypedColumns([(0, self._kind)], strict=self._typed.strict)
        found = shapes.ShapeBatch(made, data_of(bodies), bounds_of(bodies)).items()
        if found is None:
            return self._one_by_one(bodies)
        (column,) = found.columns
        if not len(found.others):
            return column
        both = pa.concat_arrays([column, self._one_by_one(bodies.take(found.others))])
        return both.take(pc.sort_indices(pa.concat_arrays([found.fit, found.others])))

    def _one_by_one(self, bodies: pa.Array) -> pa.Array:
        columns = ItemColumns(self._kind, strict=self._typed.strict)
        made = [pa.array([], self._kind)]
        for chunk in decoded_items(bodies):
            try:
                made.append(columns.of(chunk))
            except Misfit:
                raise self._misfit(chunk) from None
        return pa.concat_arrays(made)

    def _misfit(self, items: list[TypedItem]) -> Invalid:
        """The error for the first value that does not fit."""
        convert = item_converter(self._kind, strict=self._typed.strict)
        for item in items:
            try:
                convert(item)
            except Misfit as misfit:
                return not_typed(misfit, self._typed.place(self._key_of(item), self._sequence), "")
        raise AssertionError("one of them does not fit")

    def _key_of(self, item: TypedItem) -> TypedItem:
        try:
            return {name: item[name] for name in self._keys}
        except KeyError as error:
            raise Corrupt(f"an item lacks its key {error}; run tailrace check") from None
