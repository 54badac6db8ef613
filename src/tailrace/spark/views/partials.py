"""Partial aggregates of an additive view: the texts that the server keeps, and adding a batch to them.

A text has the numbers of a group in the order of the partials' columns. Tasks read the partials of the groups in their
rows at the positions that the batch starts from, and add: nothing is kept in the job, so one that starts reads nothing
but changes. Numbers are added by Arrow, exactly; Spark's own sum of two DECIMAL(38, s) has fewer digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.spark import rows
from tailrace.spark.connection import client, patiently
from tailrace.spark.failures import hide_traceback_each
from tailrace.spark.options import ServerAccess

KEY: Final = "__k"  # before the number of a key column
SEPARATOR: Final = "|"
_READ_ROWS: Final = 10_000
_READ_BYTES: Final = 4 * limits.MiB


def added(batch: pa.RecordBatch, names: Sequence[str], texts: Sequence[str | None]) -> pa.RecordBatch:
    """The batch with the numbers of texts, one for each row or None, added to the columns of these names."""
    stored = pc.split_pattern(pa.array(texts, pa.string()), SEPARATOR)
    lengths = pc.unique(pc.drop_null(pc.list_value_length(stored))).to_pylist()
    if lengths not in ([], [len(names)]):
        raise Invalid(f"a partial aggregate has {lengths} numbers, not {len(names)}; fill the view again")
    for index, name in enumerate(names):
        column = batch.column(name)
        number = pc.fill_null(pc.cast(pc.list_element(stored, index), column.type), pa.scalar("0").cast(column.type))
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), _sum(column, number))
    return batch


def _sum(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        if not pa.types.is_decimal(left.type):
            return pc.add_checked(left, right)
        wide = pa.decimal256(left.type.precision, left.type.scale)
        return pc.add(left.cast(wide), right.cast(wide)).cast(left.type)
    except pa.ArrowInvalid as error:
        raise Invalid(f"a sum of the view has too many digits: {error}", code="OUT_OF_RANGE") from None


class AddPartials(msgspec.Struct, frozen=True):
    """Adds the partials of a view at its positions to those of a batch. Runs in an executor."""

    access: ServerAccess
    view: str
    at: dict[str, int]  # positions by log
    form: str
    keys: tuple[str, ...]  # of the view's table
    names: tuple[str, ...]  # of the partials

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return hide_traceback_each(self._added)(batches)

    def _added(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        width = len(self.keys)
        for batch in rows.slices(batches, _READ_ROWS, _READ_BYTES):
            columns = [batch.column(f"{KEY}{index}") for index in range(width)]
            keys = rows.stream([pa.RecordBatch.from_arrays(columns, names=list(self.keys))])
            body: dict[str, Any] = {"at": self.at, "form": self.form, "keys": keys}
            texts = patiently(lambda body=body: client(self.access).view_partials(self.view, body))  # type: ignore[misc]
            yield added(batch.select(batch.schema.names[:-width]), self.names, texts)
