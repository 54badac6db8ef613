"""What lies in cold storage, read by plain deltalake and pyarrow, and what the log says; nothing of ours in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tailrace.client import Client

Entry = tuple[int, int, int, bytes]  # log, position, next, body


def problems(client: Client, data: Path, kind: str, name: str, place: str) -> list[str]:
    """How the Delta table differs from the log, if it does."""
    table = DeltaTable(str(data / "cold" / place)).to_pyarrow_table()
    mine = {each["log"] for each in client.logs(**{kind: name})["partitions"]}
    rows = [row for row in table.to_pylist() if row["log"] in mine]
    index = "index" if kind == "table" else "position"
    counts = Counter((row["log"], row["position"], row[index]) for row in rows)
    doubled = sorted(each for each, count in counts.items() if count > 1)
    found = sorted((row["log"], row["position"], row["next"], row["body"]) for row in rows if row["body"] is not None)
    expected = list(entries(client, kind, name))
    wrong: list[str] = []
    if doubled:
        wrong.append(f"{place} has {len(doubled)} rows of {name} more than once: {doubled[:10]}")
    if found != expected:
        lost = sorted(set(expected) - set(found))
        wrong.append(
            f"{place} has {len(found)} entries of {name} where the log has {len(expected)}; lost: "
            f"{[each[:3] for each in lost[:10]]}"
        )
    return wrong


def entries(client: Client, kind: str, name: str) -> Iterator[Entry]:
    """The log's entries, as the server has them."""
    for part in client.logs(**{kind: name})["partitions"]:
        named: dict[str, Any] = {kind: name}
        if kind == "topic":
            named["partition"] = part["partition"]
        with client.arrow(**named, offset=part["hot"], until=part["next"], form="entries") as batches:
            for batch in batches:
                for row in batch.to_pylist():
                    yield row["log"], row["position"], row["next"], row["body"]
