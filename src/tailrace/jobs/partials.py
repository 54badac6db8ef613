"""Partial aggregates: the state of an additive view, one for each of its groups, beside the view's rows.

A group has a partial also where HAVING leaves it without a row, so partials are not attributes of rows. They are in a
space of their own, under the keys of the view's table, which no API lists or reads but `ReadPartials`. What a partial
is, is up to the view's job: text, in the form that the plan of the view names (`ViewShape.partials`). They are staged
with the rows that follow from them, and written in the same transaction (`apply`, `view_fill`). Reading them checks the
view's positions in the same snapshot, so a batch adds its changes to the partials at the positions that it starts from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tailrace.access import Permission
from tailrace.command import Query
from tailrace.errors import Conflict, Fenced
from tailrace.extras import require
from tailrace.jobs import rows
from tailrace.jobs.job import positions
from tailrace.jobs.view import LIVE, ViewDefinition, found
from tailrace.storage.engine import Reader, Tx
from tailrace.tables.definition import ITEMS, Definition, ItemRow, find


class ReadPartials(Query[list[str | None]], frozen=True):
    """The partials with these keys, in their order, of a view at these positions; None where a group has none. Slow:
    not for an event loop."""

    permission = Permission.JOBS
    subject = ("tables", "name")

    name: str
    at: Mapping[int, int]  # positions by log
    form: str
    keys: bytes  # an Arrow stream with the key columns of the view's table

    def run(self, reader: Reader) -> list[str | None]:
        _, view = found(reader, self.name)
        stored = positions(reader, self.name)
        if view.phase != LIVE or stored != self.at:
            raise Fenced(
                f"view {self.name!r} is {view.phase} and at other positions than those that the batch starts from; "
                "start over from the stored positions",
                facts={"positions": {str(log): position for log, position in stored.items()}},
            )
        check_form(self.name, view, self.form)
        definition = find(reader, self.name)
        if definition.partials_space is None:
            raise _other_plan(self.name)
        require("cold")
        from tailrace.jobs import arrow_rows  # Arrow takes long to import, and many servers never need it

        keys = arrow_rows.stored_keys(self.keys, definition)
        there = reader.get_each(ITEMS, (definition.partials_space,), keys)
        return [None if (row := there.get(key)) is None else row.body.decode() for key in keys]


def check_form(name: str, view: ViewDefinition, form: str) -> None:
    """Raise unless partials are of the form that the view's present plan has."""
    if form != ("" if view.shape is None else view.shape.partials):
        raise _other_plan(name)


def _other_plan(name: str) -> Conflict:
    return Conflict(
        f"view {name!r} was planned again meanwhile, and its state is another; start over", code="VIEW_STALE"
    )


def written(tx: Tx, definition: Definition, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, as they are; the partials of each are written when it is taken."""
    space = definition.partials_space
    for body in chunks:
        if space is not None:
            changed: dict[tuple[int, bytes], ItemRow | None] = {}
            for key, text in rows.partials(rows.table_chunk(body)):
                changed[space, key] = ItemRow(space, key, len(text), text) if text else None
            tx.put_each(ITEMS, changed)
        yield body
