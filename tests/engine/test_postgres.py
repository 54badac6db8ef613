"""What only the engine over PostgreSQL has: the lease, outcomes that are decided, rows read for a whole batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from tailrace.database import Database
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.leadership import Candidate, cluster_status, step_down
from tailrace.storage.postgres import PostgresEngine, connect
from tailrace.storage.table import META, MetaRow
from tailrace.streams.commands import Append, CreateStream
from tests.engine.conftest import NOW_MS
from tests.migration.test_schema import declared
from tests.support import postgres
from tests.support.patience import PATIENCE_S

ENVIRONMENT = {"TAILRACE_SECRET_KEY": postgres.KEY}
LONG_S = 1000.0


@pytest.fixture
def url() -> str:
    return postgres.empty_database()


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., PostgresEngine]]:
    """Opens engines over one database."""
    made: list[PostgresEngine] = []

    def open_one(address: str = "http://a", ttl_s: float = LONG_S) -> PostgresEngine:
        made.append(PostgresEngine(url, environment=ENVIRONMENT, address=address, ttl_s=ttl_s))
        return made[-1]

    yield open_one
    for engine in made:
        engine.close()


def begun(engine: PostgresEngine, name: str) -> Any:
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow(name, b""))
    tx.keep()
    tx.flush()
    return tx


def write(engine: PostgresEngine, name: str) -> None:
    begun(engine, name).commit()


def names(url: str) -> set[str]:
    found = postgres.shared_server().execute(
        "SELECT name FROM tailrace.meta WHERE name LIKE 'n%'", postgres.name_of(url)
    )
    return {name for (name,) in found}


def expire(url: str) -> None:
    """As if the leader had not renewed its lease for long."""
    postgres.shared_server().execute("UPDATE tailrace.leader SET renewed = '-infinity'", postgres.name_of(url))


# -- the lease


def test_one_engine_leads(make: Callable[..., PostgresEngine]) -> None:
    first = make("http://first")
    with pytest.raises(Unavailable, match="http://first") as refused:
        make("http://second")
    assert refused.value.code == "NOT_LEADER"
    first.close()
    assert make("http://second").lease.epoch == first.lease.epoch + 1


@pytest.mark.parametrize("ended", [False, True])
def test_a_leader_that_was_replaced_commits_nothing(make: Callable[..., PostgresEngine], url: str, ended: bool) -> None:
    """Whether its session has ended or not: its rows find another epoch."""
    first = make()
    if not ended:  # it is not found by its name
        first.writer.execute("SELECT set_config('application_name', 'other', false)")
    write(first, "n1")
    late = begun(first, "n2")
    expire(url)
    second = make("http://second")
    write(second, "n3")
    with pytest.raises(Unavailable) as deposed:
        late.commit()
    late.rollback()
    assert deposed.value.code == "NOT_LEADER"
    with pytest.raises(Unavailable):
        first.begin(NOW_MS)
    assert names(url) == {"n1", "n3"}
    ((batches,),) = postgres.shared_server().execute(
        f"SELECT batches FROM tailrace.epochs WHERE epoch = {first.lease.epoch}", postgres.name_of(url)
    )
    assert batches == 1


def test_the_session_of_a_leader_that_hangs_is_ended(make: Callable[..., PostgresEngine], url: str) -> None:
    """It may hold the row locked: it stopped between the fence and COMMIT."""
    first = make(ttl_s=0.3)
    first.lease._stop.set()  # it does not renew
    write(first, "n1")
    first.writer.execute("BEGIN")
    first.writer.execute("UPDATE leader SET batch = batch")
    candidate = Candidate(url, "unused", "http://second")
    wait_until(lambda: candidate._look().vacant)
    candidate.close()
    second = wait_until(lambda: opened(lambda: make("http://second")))
    write(second, "n2")
    with pytest.raises(psycopg.Error):
        first.writer.execute("COMMIT")
    assert names(url) == {"n1", "n2"}


def opened(make: Callable[[], PostgresEngine]) -> PostgresEngine | None:
    try:
        return make()
    except Unavailable:  # the old session is about to end
        return None


def wait_until(true: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.02)
    return found


def test_a_late_waiter_does_not_depose_the_next_leader(make: Callable[..., PostgresEngine], url: str) -> None:
    first = make()
    seen = first.lease._looked()
    expire(url)
    second = make("http://second")
    third = PostgresEngine(url, environment=ENVIRONMENT, read_only=True)
    assert third.lease.acquire(seen._replace(expired=True)) is None
    third.close()
    write(second, "n1")


def test_time_does_not_go_back_from_one_leader_to_the_next(make: Callable[..., PostgresEngine]) -> None:
    first = make()
    later = begun(first, "n1")
    later.now_ms = NOW_MS + 3_600_000  # its clock is an hour ahead
    later.commit()
    first.close()
    second = make("http://second")
    tx = second.begin(NOW_MS)
    assert tx.now_ms == NOW_MS + 3_600_000
    tx.rollback()
    with second.reader(NOW_MS) as reader:
        assert reader.now_ms == NOW_MS + 3_600_000


def test_rows_in_memory_are_used_only_while_the_lease_is_fresh(make: Callable[..., PostgresEngine]) -> None:
    engine = make()
    write(engine, "n1")
    engine.cache[META]["n1",] = MetaRow("n1", b"in memory")
    with engine.reader(single=True) as reader:
        assert reader.get(META, "n1") == MetaRow("n1", b"in memory")
        engine.lease._renewed_s -= 2 * LONG_S  # it was frozen, and another server may lead by now
        assert reader.get(META, "n1") == MetaRow("n1", b"")
    tx = engine.begin(NOW_MS)
    number = engine.lease._number
    tx.commit()
    assert engine.lease._number == number + 1, "a commit without rows asks the database who leads"
    assert engine.lease.fresh


# -- outcomes


@contextmanager
def cut(tx: Any, *, after: bool) -> Iterator[None]:
    """Let the connection break before or after the statements of the commit are carried out."""
    connection = tx._connection
    pipeline = connection.pipeline

    @contextmanager
    def cutting() -> Iterator[None]:
        if after:
            with pipeline():
                yield
        else:
            yield
        connection.close()
        raise psycopg.OperationalError("the connection was cut")

    class Cut:
        def __getattr__(self, name: str) -> Any:
            return cutting if name == "pipeline" else getattr(connection, name)

    tx._connection = Cut()
    if not after:
        tx._cursor = type("Nothing", (), {"execute": lambda *_: None})()
    yield


@pytest.mark.parametrize("after", [False, True])
def test_an_outcome_without_an_answer_is_decided(make: Callable[..., PostgresEngine], url: str, after: bool) -> None:
    engine = make()
    write(engine, "n1")
    tx = begun(engine, "n2")
    epoch = engine.lease.epoch
    with cut(tx, after=after):
        if after:
            tx.commit()
        else:
            with pytest.raises(Unavailable, match="nothing was written") as lost:
                tx.commit()
            assert lost.value.code == "DATABASE_LOST"
            tx.rollback()
    assert names(url) == ({"n1", "n2"} if after else {"n1"})
    assert engine.lease.epoch == epoch + 1
    write(engine, "n3")
    assert "n3" in names(url)


@pytest.mark.parametrize("after", [False, True])
def test_an_outcome_is_decided_where_another_server_was_quicker(
    make: Callable[..., PostgresEngine], url: str, after: bool
) -> None:
    engine = make()
    tx = begun(engine, "n1")
    decide = engine.lease.decide

    def late(epoch: int, number: int) -> bool:
        expire(url)
        make("http://second")
        return decide(epoch, number)

    engine.lease.decide = late  # type: ignore[method-assign]
    with cut(tx, after=after):
        if after:
            tx.commit()
        else:
            with pytest.raises(Unavailable) as deposed:
                tx.commit()
            assert deposed.value.code == "NOT_LEADER"
    assert names(url) == ({"n1"} if after else set())
    with pytest.raises(Unavailable) as deposed:
        engine.begin(NOW_MS)
    assert deposed.value.code == "NOT_LEADER"


def test_a_durable_commit_is_answered_as_such_by_a_server_that_leads_no_more(
    make: Callable[..., PostgresEngine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    db = Database(engine, housekeeping_s=None)
    decide, begin = engine.lease.decide, engine.begin

    def late(epoch: int, number: int) -> bool:
        expire(url)
        make("http://second")
        return decide(epoch, number)

    with ExitStack() as stack:

        def begin_cut(now_ms: int) -> Any:
            tx = begin(now_ms)
            stack.enter_context(cut(tx, after=True))
            return tx

        monkeypatch.setattr(engine.lease, "decide", late)
        monkeypatch.setattr(engine, "begin", begin_cut)
        db.execute(CreateStream("s"))  # it is durable
    monkeypatch.undo()
    assert postgres.shared_server().execute("SELECT count(*) FROM tailrace.streams", postgres.name_of(url)) == [(1,)]
    with pytest.raises(Unavailable) as deposed:
        db.execute(CreateStream("t"))
    assert deposed.value.code == "NOT_LEADER"
    db.close()


def test_a_warning_at_the_commit_leaves_its_outcome_to_be_decided(
    make: Callable[..., PostgresEngine], url: str
) -> None:
    """PostgreSQL answers so when the wait for a synchronous standby is cancelled."""
    engine = make()
    epoch = engine.lease.epoch
    tx = begun(engine, "n1")
    tx._queue("DO $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; END $$")
    tx.commit()
    assert engine.lease.epoch == epoch + 1
    assert names(url) == {"n1"}


def test_a_take_over_that_a_standby_may_not_have_is_none(make: Callable[..., PostgresEngine], url: str) -> None:
    """Otherwise a commit whose outcome it decides would be acknowledged, and lost with the primary."""
    make().close()
    server, database = postgres.shared_server(), postgres.name_of(url)
    server.execute(
        "CREATE FUNCTION tailrace.warn() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NEW; END $$",
        database,
    )
    server.execute(
        "CREATE TRIGGER warn BEFORE INSERT ON tailrace.epochs FOR EACH ROW EXECUTE FUNCTION tailrace.warn()", database
    )
    with pytest.raises(Unavailable):
        make()
    server.execute("DROP TRIGGER warn ON tailrace.epochs", database)
    write(make(), "n1")
    assert names(url) == {"n1"}


def test_a_session_that_ended_between_commits_is_made_anew(make: Callable[..., PostgresEngine], url: str) -> None:
    engine = make()
    write(engine, "n1")
    with engine.reader() as reader:
        assert reader.get(META, "n1") is not None
    postgres.end_sessions(url)
    write(engine, "n2")
    with engine.reader() as reader:
        assert reader.get(META, "n2") is not None


# -- rows


def test_the_schema_is_that_of_the_declared_tables(make: Callable[..., PostgresEngine], url: str) -> None:
    make()
    found = postgres.shared_server().execute(
        "SELECT table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns "
        "WHERE table_schema = 'tailrace'",
        postgres.name_of(url),
    )
    there = {(table, column): (kind, nullable, collation) for table, column, kind, nullable, collation in found}
    kinds = {"INTEGER": ("bigint", None), "TEXT": ("text", "C"), "BLOB": ("bytea", None)}
    for table in declared().values():
        for column in table.stored:
            kind, collation = kinds[column.kind]
            expected = (kind, "YES" if column.nullable else "NO", collation)
            assert there[table.name, column.name] == expected, f"{table.name}.{column.name}"


@pytest.mark.parametrize("name", ["a\0b", "\0"])
def test_a_text_with_nul_fails_its_command_alone(make: Callable[..., PostgresEngine], name: str) -> None:
    engine = make()
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow("n1", b"\0"))
    tx.keep()
    for wrong in (lambda: tx.put(META, MetaRow(name, b"")), lambda: tx.get(META, name)):
        with pytest.raises(Invalid, match="U\\+0000"):
            wrong()
        tx.undo()
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert reader.get(META, "n1") == MetaRow("n1", b"\0")
        with pytest.raises(Invalid, match="U\\+0000"):
            reader.get(META, name)


def test_the_rows_of_a_batch_are_read_at_once(make: Callable[..., PostgresEngine]) -> None:
    engine = make()
    with Database(engine, housekeeping_s=None) as db:
        for number in range(20):
            db.execute(CreateStream(f"s{number}", "text/plain"))
        engine.cache.clear()
        commands = [Append(f"s{number}", b"x", "text/plain") for number in range(20)]
        tx = engine.begin(NOW_MS)
        read: list[str] = []
        run = tx._run
        tx._run = lambda statement, bound: (read.append(statement), run(statement, bound))[1]  # type: ignore[func-returns-value,method-assign]
        tx.fetch_ahead([command.prefetch for command in commands])
        for command in commands:
            command.run(tx)
            tx.keep()
        tx.flush()
        assert not [statement for statement in read if "streams" in statement or "FROM logs" in statement]
        tx.commit()


# -- operators


def test_the_status_of_a_cluster_and_stepping_down(
    make: Callable[..., PostgresEngine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make("http://first", ttl_s=1.0)
    write(engine, "n1")
    found = cluster_status(url)
    assert (found.leader, found.leading, found.epoch, found.commits) == ("http://first", True, engine.lease.epoch, 1)
    assert found.standbys == []
    with pytest.raises(Unavailable, match="no other server waits"):
        step_down(url, 1)
    candidate = Candidate(url, "unused", "http://second")
    with pytest.raises(Invalid, match="no key"):  # when it starts, and not when it takes over
        candidate.attempt()
    monkeypatch.setenv("TAILRACE_SECRET_KEY", postgres.KEY)
    assert candidate.attempt() is None
    assert "http://first" in str(candidate.reason)
    assert cluster_status(url).standbys == ["http://second"]
    with pytest.raises(Unavailable, match="has taken over"):
        step_down(url, 0.3)
    wait_until(lambda: engine.lease.asked)
    candidate.close()
    engine.close()
    assert not cluster_status(url).leading


def test_the_connections_to_a_machine_that_says_nothing_end(url: str) -> None:
    with connect(url, "test") as connection:
        found = connection.info.get_parameters()
    assert {name: found[name] for name in found if name.startswith(("keepalives", "tcp"))} == {
        "keepalives_idle": "2", "keepalives_interval": "1", "keepalives_count": "3", "tcp_user_timeout": "5000",
    }  # fmt: skip
    with connect(f"{url}{'&' if '?' in url else '?'}tcp_user_timeout=9000", "test") as connection:
        assert connection.info.get_parameters()["tcp_user_timeout"] == "9000"


def test_a_url_that_is_none() -> None:
    with pytest.raises(Error, match="URL"):
        PostgresEngine("postgresql://[", environment=ENVIRONMENT)
    with pytest.raises(Unavailable) as refused:
        PostgresEngine("postgresql:///none?host=/nonexistent", environment=ENVIRONMENT)
    assert refused.value.code == "DATABASE_LOST"
