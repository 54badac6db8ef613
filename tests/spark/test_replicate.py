"""Copies in Delta, PostgreSQL and another Tailrace: the same as the table, whatever is replayed, cut off or lost."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tailrace.client import Client
from tailrace.cold.store import Store
from tailrace.errors import Conflict, Error, Fenced, Invalid, TooLarge, Unavailable
from tailrace.spark.jobs import clusters, copies, fold
from tailrace.spark.jobs import replicate as module
from tailrace.spark.jobs.clusters import Clustering, LeafResult
from tailrace.spark.jobs.copies import EmptyCopy, RowsFunction, TableCopy
from tailrace.spark.jobs.progress import Meter
from tailrace.spark.jobs.replicas import ReplicaSource
from tailrace.spark.jobs.replicas import postgres as postgres_module
from tailrace.spark.jobs.replicas.delta import DeltaReplica
from tailrace.spark.jobs.replicas.postgres import PostgresReplica
from tailrace.spark.jobs.replicate import replicate
from tailrace.spark.jobs.state import change_stream_info, changes
from tailrace.spark.options import ServerAccess
from tests.spark.states import History, key_of, live, postgres, same_item, same_items
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

Spark = Any
KINDS = ("delta", "postgresql", "tailrace")


class Target:
    """One place for copies."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url

    def to(self, table: str) -> str:
        return f"{self.url}/{table}" if self.kind == "delta" else self.url

    def items(self, table: str) -> dict[Any, Any]:
        """The copy, read with no code of ours, by key."""
        if self.kind == "tailrace":
            with Client(self.url) as client:
                return live(client, table)
        rows: list[tuple[Any, Any]]
        if self.kind == "delta":
            found = DeltaTable(f"{self.url.removeprefix('file://')}/{table}")
            rows = [(json.loads(row["keys"]), json.loads(row["typed"])) for row in found.to_pyarrow_table().to_pylist()]
            files = found.file_uris()
            if files:
                assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files!r})").fetchall() == [(len(rows),)]
        else:
            with psycopg.connect(self.url) as connection:
                rows = connection.execute(f'SELECT key, typed FROM "{table}"').fetchall()
        items = {}
        for key, typed in rows:
            assert key == {"id": typed["id"]["S"], "at": int(typed["at"]["N"])}
            assert key_of(typed) not in items, "a key is there once"
            items[key_of(typed)] = same_item(typed)
        return items


class HeldChanges:
    """Changes that this process has, merged here: for races of writers, whose executors do not matter."""

    def __init__(self, rows: pa.Table) -> None:
        self._table = rows
        self.rows, self.size = rows.num_rows, rows.nbytes

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        yield from work(iter(self._table.to_batches()))

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        index = pa.array([0] * self.rows, pa.int32())
        marks = self._table.append_column(fold.MARKS.field("index"), index)
        leaf = clusters.numbers(marks["keys"], found.leaves)
        return [
            clusters.merge_leaf(store, place, found.leaves[number], marks.filter(pc.equal(leaf, number)))
            for number in leaf.unique().to_pylist()
        ]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    folder = tmp_path_factory.mktemp("copies")
    with postgres() as url, ServerProcess.tailrace(folder / "other") as other:
        yield {
            "delta": Target("delta", (folder / "delta").as_uri()),
            "postgresql": Target("postgresql", url),
            "tailrace": Target("tailrace", other.url),
        }


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, places: dict[str, Target]) -> Target:
    return places[request.param]


def copying(spark: Spark, server: ServerProcess, client: Client, table: str, target: Target) -> module._Replication:
    """What `replicate` makes of its arguments, for batches of our own."""
    return module._Replication(
        spark, client, table, target.to(table), target.kind, table, table, url=server.url, token=None,
        target_token=None, max_records=1000, meter=Meter("test", "replicate"),
    )  # fmt: skip


def test_a_copy_follows(spark: Spark, server: ServerProcess, client: Client, target: Target) -> None:
    table = f"followed-{target.kind}"
    history = History(client, table, 51)
    for steps in (30, 10, 0):
        history.run(steps, note=False)
        done = replicate(spark, table=table, to=target.to(table), url=server.url, once=True, max_records=40)
        assert target.items(table) == same_items(history.items) == live(client, table)
        assert done.position == history.sequence + 1
    assert done.rows == 0, "there was nothing new"
    for item in list(history.items.values()):
        client.call("DeleteItem", {"TableName": table, "Key": {name: item[name] for name in ("id", "at")}})
    replicate(spark, table=table, to=target.to(table), url=server.url, once=True)
    assert target.items(table) == {}


def test_batches_that_come_twice_overlap_or_are_ahead(
    spark: Spark, server: ServerProcess, client: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"replayed-{target.kind}"
    history = History(client, table, 52)
    history.run(40)
    states = {sequence + 1: items for sequence, items in history.states}
    ends = sorted(states)
    work = copying(spark, server, client, table, target)
    try:
        first = work.begin()
        known = work.known
        assert known is not None

        def batch(start: int, end: int) -> None:
            work.apply_batch(changes(spark, known, server.url, None, start, end))

        def is_at(end: int) -> None:
            assert work._replica is not None and work._replica.fence() == end
            assert target.items(table) == same_items(states[end]), f"at {end}"

        batch(first, ends[10])
        is_at(ends[10])
        batch(first, ends[10])  # the same once more
        is_at(ends[10])
        batch(ends[3], ends[7])  # long done
        is_at(ends[10])
        batch(ends[5], ends[15])  # half of it is
        is_at(ends[15])
        batch(ends[20], ends[25])  # a checkpoint that is ahead of the copy
        is_at(ends[25])
        # Too much for one transaction: it is cut, in order.
        applied = work._replica.apply  # type: ignore[union-attr]
        sizes = []

        def small(changes: Any, start: int, end: int) -> None:
            count = changes.rows
            if count > 3 and end - start > 1:
                raise TooLarge("too much")
            sizes.append(count)
            applied(changes, start, end)

        monkeypatch.setattr(work._replica, "apply", small)
        batch(ends[25], ends[35])
        is_at(ends[35])
        assert len(sizes) > 1
        # Another driver is further than this one thinks.
        with pytest.raises(Fenced, match="another replicate"):
            applied(HeldChanges(pa.Table.from_pylist([], fold.STATE)), ends[30], ends[36])
        is_at(ends[35])
    finally:
        work.close()


def test_a_lost_and_a_kept_checkpoint(
    spark: Spark, server: ServerProcess, client: Client, target: Target, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = f"lost-{target.kind}"
    history = History(client, table, 53)
    history.run(25, note=False)
    checkpoint = tmp_path / "checkpoint"

    def go(**options: Any) -> Any:
        return replicate(
            spark, table=table, to=target.to(table), url=server.url, once=True, checkpoint=str(checkpoint),
            max_records=6, **options,
        )  # fmt: skip

    # It dies when a batch is written, before Spark notes that in its checkpoint.
    apply = module._Replication.apply_batch
    count = [0]

    def dying(self: Any, frame: Any) -> None:
        apply(self, frame)
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(module._Replication, "apply_batch", dying)
        with pytest.raises(Error, match="killed"):
            go()
    assert target.items(table) != same_items(history.items)
    go()
    assert target.items(table) == same_items(history.items)
    history.run(10, note=False)
    shutil.rmtree(checkpoint)
    go()
    assert target.items(table) == same_items(history.items)


def test_a_first_copy_of_a_table_with_items(
    spark: Spark, server: ServerProcess, client: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"older-{target.kind}"
    history = History(client, table, 54, stream=None)
    for _ in range(25):
        history.step()
    history.enable()
    history.run(5, note=False)
    History(client, f"noise-{target.kind}", 55).run(2, note=False)
    monkeypatch.setattr(copies, "SPLIT_ROWS", 5)  # tasks read segments
    changes_of = TableCopy.changes
    ends = []

    def meanwhile(self: TableCopy) -> Any:
        """Items are changed, made and removed when they have been read."""
        history.run(12, note=False)
        found = changes_of(self)
        ends.append(found[1])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(TableCopy, "changes", meanwhile)
        done = replicate(spark, table=table, to=target.to(table), url=server.url, once=True)
    assert done.backfilled and not done.rows, "there was nothing after the first copy"
    assert done.position == history.sequence + 1 == ends[0]
    assert target.items(table) == same_items(history.items)
    history.run(10, note=False)
    assert replicate(spark, table=table, to=target.to(table), url=server.url, once=True).backfilled == 0
    assert target.items(table) == same_items(history.items)
    # It was away for so long that changes are gone.
    history.run(6, note=False)
    client.prune(table, history.sequence - 1)
    again = replicate(spark, table=table, to=target.to(table), url=server.url, once=True)
    assert again.backfilled and target.items(table) == same_items(history.items)
    # The stream was off for a while: what happened meanwhile is in no stream.
    history.disable()
    for _ in range(8):
        history.step()
    history.enable()
    history.run(3, note=False)
    assert replicate(spark, table=table, to=target.to(table), url=server.url, once=True).backfilled
    assert target.items(table) == same_items(history.items)


def test_items_of_different_moments_need_recorded_changes(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPLIT_ROWS", 1)
    monkeypatch.setattr(copies, "parallelism", lambda spark: 3)
    history = History(client, "unrecorded", 60)
    history.run(20, note=False)
    access = ServerAccess(server.url, None, None, None)

    def copied() -> tuple[TableCopy, int]:
        copy = TableCopy(spark, client, change_stream_info(client, "unrecorded"), access)
        found: Any = copy.items()
        return copy, found._segments

    copy, segments = copied()
    assert segments == 3
    history.disable()
    with pytest.raises(Conflict, match="was disabled while it was copied"):
        copy.changes()
    copy, segments = copied()
    assert segments == 1, "one task reads all of it, at one moment"
    assert copy.changes()[0].rows == 0


def test_a_first_copy_that_died_is_restarted(
    spark: Spark, server: ServerProcess, client: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"unfinished-{target.kind}"
    history = History(client, table, 56, stream=None)
    for _ in range(20):
        history.step()
    history.enable()

    def dying(self: TableCopy) -> Any:  # the items are written, and not the changes over them
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(TableCopy, "changes", dying)
        with pytest.raises(RuntimeError, match="killed"):
            replicate(spark, table=table, to=target.to(table), url=server.url, once=True)
    if target.kind == "tailrace":
        assert target.items(table), "a part of a first copy is there, to be removed"
    for item in list(history.items.values())[:5]:  # what goes now must not stay in the copy
        client.call("DeleteItem", {"TableName": table, "Key": {name: item[name] for name in ("id", "at")}})
        del history.items[key_of(item)]
    replicate(spark, table=table, to=target.to(table), url=server.url, once=True)
    assert target.items(table) == same_items(history.items)


def test_objects_of_another_owner_are_refused(
    spark: Spark, server: ServerProcess, client: Client, places: dict[str, Target], tmp_path: Path
) -> None:
    history = History(client, "guarded", 57)
    history.run(5, note=False)

    def go(to: str, **options: Any) -> Any:
        return replicate(spark, table="guarded", to=to, url=server.url, once=True, **options)

    with psycopg.connect(places["postgresql"].url) as connection:
        connection.execute("CREATE TABLE theirs (key jsonb PRIMARY KEY, item jsonb, typed json, sequence bigint)")
        connection.execute("INSERT INTO theirs VALUES ('1', '1', '1', 1)")
    with pytest.raises(Conflict, match="'theirs' in PostgreSQL has rows"):
        go(places["postgresql"].url, target_table="theirs")
    with Client(places["tailrace"].url) as other:
        History(other, "theirs", 58).run(2, note=False)
    with pytest.raises(Conflict, match="'theirs' has items already"):
        go(places["tailrace"].url, target_table="theirs")
    pa_table = pa.table({"x": [1]})
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "theirs"), pa_table)
    with pytest.raises(Invalid, match="did not make"):
        go((tmp_path / "theirs").as_uri())
    with pytest.raises(Invalid, match="cannot be a copy of itself"):
        go(server.url)
    with pytest.raises(Invalid, match="cannot be the target of a copy"):
        go("ftp://example.org/x")
    with pytest.raises(Unavailable, match="PostgreSQL cannot be reached"):
        go("postgresql://nobody:secret@127.0.0.1:1/none")
    assert "secret" not in module.shown("postgresql://nobody:secret@127.0.0.1:1/none")
    # The same server, another table.
    go(server.url, target_table="guarded-copy", name="inside")
    assert live(client, "guarded-copy") == same_items(history.items)


def test_psycopg_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(Error, match=r"pip install 'tailrace\[postgres\]'"):
        PostgresReplica("postgresql://x/y", "a", "b", ReplicaSource("d", "t", 1, (("id", "S"),)))


def test_what_postgresql_cannot_hold(places: dict[str, Target]) -> None:
    source = ReplicaSource("database", "odd", 7, (("id", "S"),))

    def rows(key: str, text: str) -> HeldChanges:
        typed = {"id": {"S": key}, "t": {"S": text}}
        plain = {"id": key, "t": text}
        row = {
            "keys": json.dumps({"id": key}), "item": json.dumps(plain), "typed": json.dumps(typed), "sequence": 1,
        }  # fmt: skip
        return HeldChanges(pa.Table.from_pylist([row], fold.STATE))

    with PostgresReplica(places["postgresql"].url, "odd", "odd", source) as copy:
        copy.backfill(EmptyCopy(1), None)
        copy.apply(rows("a", "zero \0 and \\u0000 and \\\0"), 1, 2)
        with psycopg.connect(places["postgresql"].url) as connection:
            item, typed = connection.execute("SELECT item, typed::text FROM odd").fetchone() or ({}, "")
        assert item["t"] == "zero � and \\u0000 and \\�"
        assert json.loads(typed)["t"]["S"] == "zero \0 and \\u0000 and \\\0", "nothing is lost"
        with pytest.raises(Invalid, match=r"U\+0000"):
            copy.apply(rows("a\0", "x"), 2, 3)
        assert copy.fence() == 2, "nothing of a batch that failed is there"
    assert postgres_module._without_nul("\\\\u0000") == "\\\\u0000"


class RepeatedChanges(HeldChanges):
    """The same, staged by a task that runs twice: the first run is lost when it is done."""

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        assert list(super().each(work))
        yield from super().each(work)


def test_what_is_staged_in_postgresql(places: dict[str, Target]) -> None:
    url = places["postgresql"].url
    source = ReplicaSource("database", "staged", 9, (("id", "S"),))

    def changes(*ids: str, kind: type[HeldChanges] = HeldChanges) -> HeldChanges:
        rows = [{"keys": json.dumps({"id": each}), "item": "{}", "typed": "{}", "sequence": 1} for each in ids]
        return kind(pa.Table.from_pylist(rows, fold.STATE))

    def stages() -> list[str]:
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tailrace_stage_%'").fetchall()
        return [row[0] for row in rows]

    def emptied(name: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(psycopg.sql.SQL("TRUNCATE {}").format(psycopg.sql.Identifier(name)))

    before = stages()
    died = PostgresReplica(url, "staged", "staged", source)
    died.backfill(EmptyCopy(1), None)
    died._staged(changes("x"))
    died._disconnect()  # it was killed: what it staged is left
    (left,) = set(stages()) - set(before)
    with PostgresReplica(url, "staged", "staged", source) as copy:
        copy.apply(changes("a", "b", kind=RepeatedChanges), 1, 2)
        assert left not in stages(), "the next batch removes it"
        staged = copy._staged

        def crashing(rows: Any) -> Any:  # PostgreSQL crashes now: a table that is not logged is empty afterwards
            found = staged(rows)
            emptied(copy._stage)
            return found

        copy._staged = crashing  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="are gone"):
            copy.apply(changes("c"), 2, 3)
        copy._staged = staged  # type: ignore[method-assign]
        assert copy.fence() == 2
        copy.apply(changes("c"), 2, 3)
        # Another job was faster, and has dropped what this one has staged.
        with psycopg.connect(url) as connection:
            connection.execute(psycopg.sql.SQL("DROP TABLE {}").format(psycopg.sql.Identifier(copy._stage)))
        with pytest.raises(Fenced, match="another replicate job"):
            copy.apply(changes("d"), 3, 4)
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT key ->> 'id' FROM staged ORDER BY 1").fetchall()
    assert rows == [("a",), ("b",), ("c",)]
    assert stages() == before, "a job that is closed leaves nothing"


def test_postgresql_has_typed_columns(
    spark: Spark, server: ServerProcess, client: Client, places: dict[str, Target]
) -> None:
    url = places["postgresql"].url
    client.sql(
        "CREATE TABLE typed (id TEXT, at BIGINT, price DECIMAL, whole BIGINT, ratio DOUBLE, ok BOOLEAN, raw BLOB, "
        "more JSON, item TEXT, PRIMARY KEY (id, at)) WITH (stream = true)"
    )

    def put(at: int, **attributes: Any) -> None:
        client.call("PutItem", {"TableName": "typed", "Item": {"id": {"S": "a"}, "at": {"N": str(at)}, **attributes}})

    digits = "1234567890123456789012345678.0123456789"
    put(
        1, price={"N": digits}, whole={"N": "9007199254740993"}, ratio={"N": "0.5"}, ok={"BOOL": True},
        raw={"B": "AAEC"}, more={"M": {"x": {"L": [{"N": "1"}]}}},
    )  # fmt: skip
    # Other APIs do not check what is put: what does not fit is null there, and in the item.
    put(2, price={"S": "dear"}, whole={"N": "1e30"}, ratio={"BOOL": True}, ok={"S": "yes"}, raw={"S": "?"})
    put(3, whole={"N": "1.5"}, price={"N": "1e100"}, ratio={"N": "-1e125"}, raw={"N": "4"})

    def rows() -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(
                "SELECT id, at, price::text, whole, ratio, ok, raw, more FROM typed ORDER BY at"
            ).fetchall()

    with psycopg.connect(url) as connection:  # a copy of an earlier version, which has none of them
        connection.execute(
            "CREATE TABLE typed (key jsonb PRIMARY KEY, item jsonb NOT NULL, typed json NOT NULL, "
            "sequence bigint NOT NULL)"
        )
    replicate(spark, table="typed", to=url, url=server.url, once=True)
    assert rows() == [
        ("a", 1, digits, 9007199254740993, 0.5, True, b"\0\1\2", {"x": [1]}),
        ("a", 2, None, None, None, None, None, None),
        ("a", 3, str(10**100), None, -1e125, None, None, None),
    ]
    put(2, price={"N": "2.50"}, raw={"B": ""})
    client.call("DeleteItem", {"TableName": "typed", "Key": {"id": {"S": "a"}, "at": {"N": "1"}}})
    replicate(spark, table="typed", to=url, url=server.url, once=True)
    assert [(row[1], row[2], row[6]) for row in rows()] == [(2, "2.5", b""), (3, str(10**100), None)]


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_two_writers_of_one_copy(kind: str, places: dict[str, Target], tmp_path: Path) -> None:
    """Each range is written once, whoever comes first."""
    source = ReplicaSource("database", f"shared-{kind}", 8, (("id", "S"),))

    def opened() -> Any:
        if kind == "delta":
            return DeltaReplica((tmp_path / "shared").as_uri(), "shared", source)
        return PostgresReplica(places[kind].url, "shared", "shared", source)

    opened().backfill(EmptyCopy(0), None)
    lost = [0, 0]

    def write(number: int) -> None:
        with opened() as copy:
            at = 0
            while at < 12:
                row = {"keys": f'{{"id":"{at}"}}', "item": "{}", "typed": "{}", "sequence": number}
                try:
                    copy.apply(HeldChanges(pa.Table.from_pylist([row], fold.STATE)), at, at + 1)
                except Fenced:
                    lost[number] += 1
                at = copy.fence()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with opened() as copy:
        assert copy.fence() == 12
    if kind == "delta":
        keys = DeltaTable(str(tmp_path / "shared")).to_pyarrow_table()["keys"].to_pylist()
    else:
        with psycopg.connect(places[kind].url) as connection:
            keys = [json.dumps(row[0]) for row in connection.execute("SELECT key FROM shared").fetchall()]
    assert len(keys) == len(set(keys)) == 12


def test_it_outlives_the_server(
    spark: Spark, places: dict[str, Target], tmp_path: Path
) -> None:  # fmt: skip
    target = places["postgresql"]
    source = ServerProcess.tailrace(tmp_path / "data").start()
    port = source.port
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            replicate(
                spark, table="restarted", to=target.url, url=source.url, max_records=5, stop=stop, interval_s=0.05
            )
        except BaseException as error:
            failed.append(error)

    with Client(source.url) as client:
        history = History(client, "restarted", 59)
        history.run(10, note=False)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: _copied(target, "restarted") == same_items(history.items), failed)
        source.kill()
        time.sleep(1)
        source = ServerProcess.tailrace(tmp_path / "data", port=port).start()
        with Client(source.url) as client:
            history.client = client
            history.run(10, note=False)
        until(lambda: _copied(target, "restarted") == same_items(history.items), failed)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        source.terminate()
    assert not failed, failed


def _copied(target: Target, table: str) -> dict[Any, Any] | None:
    try:
        return target.items(table)
    except psycopg.errors.UndefinedTable:
        return None


def until(holds: Callable[[], bool], failed: list[BaseException], within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert not failed, failed
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.1)
