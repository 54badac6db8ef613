"""The operations of a transaction on items: planned one after the other, written as their net effect.

Each operation sees the effect of those before it. What is written in the end is one change for each item, from what is
stored to what the last operation has left, so a transaction has one change record for each item that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tailrace import limits
from tailrace.errors import ConditionFailed, Error
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import key as keys
from tailrace.tables import value, write
from tailrace.tables.change import Capture, too_large
from tailrace.tables.definition import ITEMS, ItemRow
from tailrace.tables.write import WritePlan
from tailrace.transactions.operations import ItemOperation, TransactionOperation
from tailrace.transactions.overlay import OverlayTx, ReadRecorder


class NetWrites:
    """The net effect of operations on items. `dependent`: those whose items depend on what is stored, and what that
    is."""

    def __init__(self, below: Reader | Tx, operations: Sequence[TransactionOperation]) -> None:
        self.dependent: dict[tuple[int, bytes], ItemRow | None] = {}
        self._plans: dict[tuple[int, bytes], WritePlan] = {}
        self._overlay = OverlayTx(below)
        self._bytes = 0
        for number, operation in enumerate(operations):
            if isinstance(operation, ItemOperation):
                with numbered(number):
                    self._add(operation)

    def _add(self, operation: ItemOperation) -> None:
        plan = operation.command(self._overlay).plan(self._overlay)
        definition, key = plan.definition, plan.key
        place = definition.space, key
        if plan.new is not None:
            for index in definition.indexes:  # an item that does not fit an index is refused before anything is written
                keys.index_key(definition, index, plan.new, key)
        first = self._plans.get(place)
        if first is None:
            first = self._plans[place] = plan
            self._bytes += plan.size_old
            if not operation.blind:
                self.dependent[place] = plan.row
        elif operation.blind:
            self.dependent.pop(place, None)
        self._bytes += plan.size
        if self._bytes > limits.TRANSACTION_BYTES_MAX:
            raise too_large()
        first.new, first.size = plan.new, plan.size
        if plan.new is None:
            self._overlay.delete(ITEMS, *place)
        else:
            self._overlay.put(ITEMS, ItemRow(*place, plan.size, value.encode(plan.new)))

    def apply(self, tx: Tx, capture: Capture) -> None:
        """Write the items; `capture.append` completes it."""
        for plan in self._plans.values():
            write.do(tx, plan, capture)

    def shown(self, below: Reader | Tx, recorder: ReadRecorder) -> OverlayTx:
        """The stored rows with these writes over them. Reads of what is stored are recorded."""
        overlay = OverlayTx(below, recorder, self.dependent)
        for plan in self._plans.values():
            recorder.know(plan.definition)
            write.do(overlay, plan, Capture())
        return overlay


@contextmanager
def numbered(number: int) -> Iterator[None]:
    """An error within this says which operation it is about."""
    try:
        yield
    except ConditionFailed as error:
        failed = ConditionFailed(
            error.item, f"operation {number}: the condition on the item does not hold; nothing was written"
        )
        failed.facts = {"operation": number}
        raise failed from None
    except Error as error:
        error.facts = {**error.facts, "operation": number}
        raise
