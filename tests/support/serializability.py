"""A checker of serializability for histories of transactions over lists, after the idea of Elle.

Theory of operation
-------------------
Each transaction reads whole lists and appends unique elements to lists. Nothing is ever removed, so a list that was
read tells the order in which its elements were appended. From that follows which transaction must come before which, in
any serial order that explains the history:

- *write-write*: who appended an element comes before who appended the next one;
- *write-read*: who appended the last element that a transaction has read comes before that transaction;
- *read-write*: who has read a list comes before who appended the first element that is not in it;
- *real time*: a transaction that had ended comes before one that began later (strict serializability).

A cycle is an anomaly: no serial order exists. So are reads that no order of appends can explain: an element that no
committed transaction has appended (an aborted read), of the middle of another transaction's appends to one key (an
intermediate read), twice in a list, or two reads of a key of which neither begins with the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Key = str


class Performed(NamedTuple):
    """A transaction of a history. `outcome`: True committed, False not, None unknown. Reads are of the state before its
    own appends. Times are of one clock."""

    number: int
    reads: dict[Key, tuple[int, ...]]
    appends: dict[Key, tuple[int, ...]]
    outcome: bool | None
    began: float = 0.0
    ended: float = 0.0


def anomalies(history: Sequence[Performed]) -> list[str]:
    """What is wrong with a history; nothing if it is strictly serializable as far as its reads tell."""
    writers: dict[tuple[Key, int], Performed] = {}
    for each in history:
        for key, elements in each.appends.items():
            for element in elements:
                assert (key, element) not in writers, f"the element {element} of {key} is appended twice by the test"
                writers[key, element] = each
    found: list[str] = []
    orders: dict[Key, tuple[int, ...]] = {}
    committed = [each for each in history if each.outcome]
    for each in committed:
        for key, seen in each.reads.items():
            found += _impossible(each, key, seen, writers)
            longest = orders.get(key, ())
            shorter, longer = sorted((longest, seen), key=len)
            if longer[: len(shorter)] != shorter:
                found.append(f"reads of {key} do not fit each other: {longest} and {seen}")
            orders[key] = longer
    if found:
        return found
    edges = _edges(committed, orders, writers)
    cycle = _cycle(edges)
    return [] if cycle is None else [f"a cycle: {_shown(cycle, edges)}"]


def _impossible(
    reader: Performed, key: Key, seen: tuple[int, ...], writers: dict[tuple[Key, int], Performed]
) -> Iterable[str]:
    if len(set(seen)) != len(seen):
        yield f"transaction {reader.number} has read an element of {key} twice: {seen}"
    for at, element in enumerate(seen):
        writer = writers.get((key, element))
        if writer is None or writer.outcome is False or writer is reader:
            yield f"transaction {reader.number} has read {element} of {key}, which was not committed before it"
            continue
        together = writer.appends[key]
        start = at - together.index(element)
        if start < 0 or seen[start : start + len(together)] != together:
            yield f"transaction {reader.number} has read a part of what {writer.number} appended to {key}: {seen}"


Edges = dict[int, dict[int, str]]


def _edges(
    committed: list[Performed], orders: dict[Key, tuple[int, ...]], writers: dict[tuple[Key, int], Performed]
) -> Edges:
    edges: Edges = defaultdict(dict)

    def before(one: Performed, other: Performed, why: str) -> None:
        if one.number != other.number:
            edges[one.number].setdefault(other.number, why)

    for key, order in orders.items():
        for first, second in pairwise(order):
            before(writers[key, first], writers[key, second], f"ww {key}")
    for each in committed:
        for key, seen in each.reads.items():
            if seen:
                before(writers[key, seen[-1]], each, f"wr {key}")
            if len(seen) < len(orders[key]):
                before(each, writers[key, orders[key][len(seen)]], f"rw {key}")
    for each in committed:
        later = sorted((one for one in committed if one.began > each.ended), key=lambda one: one.began)
        # Those that begin before another of them has ended are enough: the rest follows.
        first_end = min((one.ended for one in later), default=0.0)
        for other in later:
            if other.began <= first_end:
                before(each, other, "time")
    return edges


def _cycle(edges: Edges) -> list[int] | None:
    """The transactions of a cycle, if there is one; without recursion."""
    done: set[int] = set()
    for root in list(edges):
        if root in done:
            continue
        path: list[int] = []
        on_path: dict[int, int] = {}
        stack = [(root, iter(edges.get(root, ())))]
        on_path[root] = 0
        path.append(root)
        while stack:
            node, following = stack[-1]
            for other in following:
                if other in on_path:
                    return path[on_path[other] :]
                if other not in done:
                    on_path[other] = len(path)
                    path.append(other)
                    stack.append((other, iter(edges.get(other, ()))))
                    break
            else:
                done.add(node)
                del on_path[node]
                path.pop()
                stack.pop()
    return None


def _shown(cycle: list[int], edges: Edges) -> str:
    pairs = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    return ", ".join(f"{one} -{edges[one][other]}-> {other}" for one, other in pairs)
