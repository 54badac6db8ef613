"""Backups of whole databases: made while others write, cold storage included, and what of them can go wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import backup, failpoints
from tailrace.auth.users import CreateUser
from tailrace.backup.manifest import Manifest, decode, digest
from tailrace.bulk import queries
from tailrace.check import check_database
from tailrace.cold import compacting
from tailrace.cold.store import Store
from tailrace.command import Query
from tailrace.database import ColdStorage, Database
from tailrace.errors import Corrupt, Error, Invalid, NotFound, Unavailable
from tailrace.storage.engine import Reader
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import ReadStream
from tailrace.tables.change_reading import ReadEntries
from tailrace.tables.change_stream import CHANGE_STREAMS, ChangeStream
from tests.crash.load import TEXT, Connection
from tests.crash.test_disk import can_mount
from tests.crash.test_disk import fill as fill_disk
from tests.integration.test_cold_history import all_entries, own, trim
from tests.integration.test_cold_s3 import BUCKET, KEYS, bucket, endpoint
from tests.support.cold import Trim, store_of, tier
from tests.support.server import ServerProcess
from tests.unit.bulk.test_queries import STREAM, TABLE, TOPIC, fill

__all__ = ["bucket", "endpoint"]
pytestmark = pytest.mark.timeout(300)
WHICH = (STREAM, TABLE, TOPIC)


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened


def tiered(db: Database, count: int = 16) -> dict[str, list[dict[str, Any]]]:
    """Logs of every kind, of which most is in cold storage alone; what can be read of each."""

    class Clock:
        def advance(self, _: float) -> None:
            pass

    for which in WHICH:
        log = fill(db, Clock(), which)  # type: ignore[arg-type]
        tier(db, which, count, files=3)
        trim(db, log)
    return {which.kind: all_entries(db, which) for which in WHICH}


def same(data: Path, rows: dict[str, list[dict[str, Any]]], **options: Any) -> None:
    """A restored database answers as the original did, and is sound."""
    with tailrace.open(data, housekeeping_s=None, **options) as again:
        for which in WHICH:
            assert all_entries(again, which) == rows[which.kind]
            assert own(again, which) == [row["position"] for row in rows[which.kind]]
        assert again.metrics.cold_reads > 0, "a part came from cold storage"
    assert check_database(data, deep=True, **({"cold": options["cold"].url} if options else {})).findings == []


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=200
    )


def files_below(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


# -- there and back


@pytest.mark.parametrize("name", ["backups", "backup.tar", "backup.tar.gz", "backup.tgz", "backup.tar.zst"])
def test_what_is_restored_is_what_was_backed_up_cold_storage_included(
    db: Database, data_dir: Path, tmp_path: Path, name: str
) -> None:
    rows = tiered(db)
    made = db.backup(tmp_path / name, deep=True)
    assert made.manifest.cold_files > 6
    restored = backup.restore(tmp_path / name, tmp_path / "again", deep=True)
    assert restored.cold_url == str(tmp_path / "again" / "cold")
    shutil.rmtree(data_dir / "cold")  # nothing of the original is needed
    same(tmp_path / "again", rows)
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {"data", name, "again"}, "nothing is left behind"


def test_what_is_handed_out_before_counts_after_a_restore(db: Database, tmp_path: Path) -> None:
    """Identity, iterators, producers, groups and their leases, subscriptions: it is the same database."""
    db.execute(CreateStream("s", TEXT))
    claim = ProducerClaim("p", 0, 0)
    db.execute(Append("s", b"once;", TEXT, claim))
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    orders.put({"id": "o-1"})
    seen = [change.sequence for change in orders.changes()]
    db.create_topic("news")
    db.publish_many("news", [{"n": 1}, {"n": 2}])
    (first,) = db.consume("news", "g", limit=1, consumer="c").messages
    db.ack("news", "g", first.offset, consumer="c")
    identity = db.identity
    db.backup(tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "again")
    with tailrace.open(tmp_path / "again", housekeeping_s=None) as again:
        assert again.identity == identity
        assert again.execute(Append("s", b"once;", TEXT, claim)).duplicate
        assert [entry.body for entry in again.execute(ReadStream("s")).page.entries] == [b"once;"]
        assert [change.sequence for change in again.table("orders").changes()] == seen
        again.table("orders").put({"id": "o-2"})
        assert len(list(again.table("orders").changes(after=seen[-1]))) == 1
        (second,) = again.consume("news", "g", limit=5, consumer="c").messages
        assert second.offset == first.offset + 1
    assert check_database(tmp_path / "again").findings == []


def test_a_copy_is_a_database_of_its_own(db: Database, tmp_path: Path) -> None:
    rows = tiered(db)
    epochs = {stream.label: stream.epoch for stream in db.execute(AllStreams())}
    db.backup(tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "copy", as_copy=True, deep=True)
    same(tmp_path / "copy", rows)
    with tailrace.open(tmp_path / "copy", housekeeping_s=None) as copy:
        assert copy.identity != db.identity
        for stream in copy.execute(AllStreams()):
            assert stream.epoch != epochs[stream.label]
            with pytest.raises(Error, match="another"):
                copy.execute(ReadEntries(stream.name, stream.label, None, epoch=epochs[stream.label]))
        tier(copy, STREAM, 2)  # its cold storage is its own
        with pytest.raises(Invalid, match="history of database"):
            tier(tailrace.database.Database(copy._engine, housekeeping_s=None, cold=db.cold), STREAM, 2)
    for path in (tmp_path / "copy").rglob("*"):
        if "cold" in path.parts:
            continue
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


class AllStreams(Query[list[ChangeStream]], frozen=True):
    def run(self, reader: Reader) -> list[ChangeStream]:
        return list(reader.scan(CHANGE_STREAMS))


def test_a_backup_that_is_made_while_others_write_and_tier_is_a_consistent_prefix(
    data_dir: Path, tmp_path: Path
) -> None:
    db = tailrace.open(data_dir, housekeeping_s=0.05)
    db.execute(CreateStream("doc", TEXT))
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    stop = threading.Event()
    acknowledged = [0, 0]
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def runs() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)

        return runs

    def append() -> None:
        db.execute(Append("doc", b"%08d;" % acknowledged[0], TEXT))
        acknowledged[0] += 1

    def put() -> None:
        orders.put({"id": str(acknowledged[1]), "text": "x" * 500})
        acknowledged[1] += 1

    def move() -> None:
        tier(db, STREAM, 1)
        tier(db, TABLE, 1)
        for which in (STREAM, TABLE):
            log = db.execute(queries.find_logs(which)).parts[0].log.id
            db.execute(Trim(log, 10**12))

    for _ in range(20):
        append()
        put()
    threads = [threading.Thread(target=guarded(work)) for work in (append, put, move)]
    for thread in threads:
        thread.start()
    try:
        for number in range(4):
            before = list(acknowledged)
            db.backup(tmp_path / "backups", keep=2)
            again = tmp_path / f"again-{number}"
            backup.restore(tmp_path / "backups", again, deep=True)
            with tailrace.open(again, housekeeping_s=None) as restored:
                text = b"".join(body for body in bodies(restored))
                count = len(text) // 9
                assert text == b"".join(b"%08d;" % each for each in range(count)), "a prefix, without gaps"
                assert count >= before[0], "all that was acknowledged before is there"
                items = [change.keys["id"] for change in restored.table("orders").changes(limit=10**6)]
                assert items == [str(each) for each in range(len(items))]
                assert len(items) >= before[1]
                # It goes on: what is appended and tiered now takes the positions that others had in the original.
                restored.execute(Append("doc", b"%08d;" % count, TEXT))
                tier(restored, STREAM, 1)
                assert b"".join(bodies(restored)) == text + b"%08d;" % count
            assert check_database(again, deep=True).findings == []
            shutil.rmtree(again)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        db.close()
    assert failures == []
    assert len(backup.generations(tmp_path / "backups")) == 2


def bodies(db: Database) -> Iterator[bytes]:
    position: int | None = None
    while True:
        page = db.execute(ReadStream("doc", position)).page
        yield from (entry.body for entry in page.entries)
        if page.next >= page.tail:
            return
        position = page.next


def test_history_that_is_tiered_after_the_copy_is_not_in_the_backup(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database that is restored gives those positions to other entries."""
    db.execute(CreateStream("doc", TEXT))
    for number in range(10):
        db.execute(Append("doc", b"%d;" % number, TEXT))
    tier(db, STREAM, 4)
    copy = SqliteEngine.copy_to

    def and_then(engine: SqliteEngine, path: Path, on_progress: Any = None) -> None:
        copy(engine, path, on_progress)
        db.execute(Append("doc", b"later;", TEXT))
        for _ in range(3):
            tier(db, STREAM, 2)
        compacting.compact(store_of(db), "streams")

    monkeypatch.setattr(SqliteEngine, "copy_to", and_then)
    db.backup(tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "again", deep=True)
    with tailrace.open(tmp_path / "again", housekeeping_s=None) as again:
        again.execute(Append("doc", b"other;", TEXT))
        tier(again, STREAM, 7)
        trim(again, 1)
        assert b"".join(bodies(again)) == b"0;1;2;3;4;5;6;7;8;9;other;"
    assert check_database(tmp_path / "again", deep=True).findings == []


# -- one after another


def test_a_later_backup_stores_only_what_is_new(db: Database, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    db.execute(CreateStream("noise", "application/octet-stream"))
    chance = random.Random(1)
    for _ in range(40):
        db.execute(Append("noise", chance.randbytes(500_000), "application/octet-stream"))
    rows = tiered(db)
    first = db.backup(target).manifest
    assert first.written_bytes > 20_000_000
    db.execute(Append("noise", b"a little more", "application/octet-stream"))
    tier(db, STREAM, 2)
    second = db.backup(target).manifest
    assert second.bytes > 20_000_000
    assert second.written_bytes < first.written_bytes / 4, "only the chunks that changed"
    third = db.backup(target).manifest
    assert third.written_bytes == 0, "nothing changed"
    assert [each.id for each in whole(target)] == [first.id, second.id, third.id]
    backup.restore(target, tmp_path / "first", generation=first.id)
    same(tmp_path / "first", rows)
    with tailrace.open(tmp_path / "first", housekeeping_s=None) as again:
        assert len(again.execute(ReadStream("noise", 0)).page.entries) > 0
    assert db.backup(target, keep=2).removed == (first.id, second.id)
    assert len(whole(target)) == 2
    backup.restore(target, tmp_path / "last")
    with pytest.raises(NotFound, match=first.id):
        backup.restore(target, tmp_path / "none", generation=first.id)


def test_cold_files_that_the_target_has_are_not_read_again(db: Database, data_dir: Path, tmp_path: Path) -> None:
    tiered(db)
    db.backup(tmp_path / "backups")
    for file in (data_dir / "cold").rglob("*.parquet"):
        size = file.stat().st_size
        file.write_bytes(bytes(size))  # whoever reads it sees it
    second = db.backup(tmp_path / "backups").manifest
    assert second.written_bytes < 100_000
    backup.restore(tmp_path / "backups", tmp_path / "again", deep=True)
    with pytest.raises(Corrupt, match="cold storage"):
        db.backup(tmp_path / "backups", deep=True)
    with pytest.raises(Corrupt):
        db.backup(tmp_path / "other", deep=True)


def whole(target: Path) -> list[Manifest]:
    return [each for each in backup.generations(target) if isinstance(each, Manifest)]


def test_one_backup_at_a_time(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SqliteEngine.copy_to

    def while_another(engine: SqliteEngine, path: Path, on_progress: Any = None) -> None:
        with pytest.raises(Unavailable, match="another backup"):
            db.backup(tmp_path / "backups")
        copy(engine, path, on_progress)

    monkeypatch.setattr(SqliteEngine, "copy_to", while_another)
    db.backup(tmp_path / "backups")
    assert len(whole(tmp_path / "backups")) == 1


# -- only for the owner


def test_files_and_directories_are_for_their_owner_alone(
    db: Database, data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiered(db)
    key = (data_dir / "secret.key").read_bytes()
    before = os.umask(0)
    try:
        db.backup(tmp_path / "backups")
        db.backup(tmp_path / "one.tar.zst")
        backup.restore(tmp_path / "backups", tmp_path / "again")
    finally:
        os.umask(before)
    for root in (tmp_path / "backups", tmp_path / "again"):
        for path in (root, *root.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))
    assert stat.S_IMODE((tmp_path / "one.tar.zst").stat().st_mode) == 0o600
    assert (tmp_path / "again" / "secret.key").read_bytes() == key
    assert "not for its owner alone" not in caplog.text, "nor was anything for a moment"


# -- what is refused


def test_a_restore_never_touches_what_is_there(db: Database, data_dir: Path, tmp_path: Path) -> None:
    db.backup(tmp_path / "backups")
    with pytest.raises(Invalid, match="not empty"):
        backup.restore(tmp_path / "backups", data_dir)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Invalid, match="not empty"):
        backup.restore(tmp_path / "backups", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    backup.restore(tmp_path / "backups", tmp_path / "empty")
    assert check_database(tmp_path / "empty").findings == []
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "x").write_text("x")
    with pytest.raises(Invalid, match="not empty"):
        backup.restore(tmp_path / "backups", tmp_path / "other", cold=Store(cold))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["missing", "missing.tar", "data"])
def test_a_source_without_backups_is_named(db: Database, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match=name):
        backup.restore(tmp_path / name, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_target_that_holds_something_else_is_refused(db: Database, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("x")
    with pytest.raises(Invalid, match="no backups"):
        db.backup(tmp_path / "photos")
    (tmp_path / "there.tar").write_text("x")
    with pytest.raises(Invalid, match="exists already"):
        db.backup(tmp_path / "there.tar")
    with pytest.raises(Invalid, match="gs://"):
        db.backup("gs://bucket/x")
    with pytest.raises(Invalid, match="0 is not a number of generations"):
        db.backup(tmp_path / "backups", keep=0)


def test_a_damaged_database_is_not_backed_up(db: Database, data_dir: Path, tmp_path: Path) -> None:
    tiered(db)
    db.backup(tmp_path / "backups")
    shutil.rmtree(data_dir / "cold" / "streams")
    with pytest.raises(Corrupt, match="cold/streams is missing"):
        db.backup(tmp_path / "backups")
    assert len(whole(tmp_path / "backups")) == 1


def test_a_flip_in_the_log_of_a_running_database_does_not_get_into_a_backup(
    db: Database, data_dir: Path, tmp_path: Path
) -> None:
    """The copy would give the page a right checksum."""
    db.execute(CreateUser(name="ann", role="user", access=("streams/7/*",)))
    db.execute(CreateUser(name="bob", role="user"))
    log = data_dir / "tailrace.db-wal"
    content = log.read_bytes()
    with open(log, "r+b") as file:
        file.seek(content.rindex(b"streams/7/*") + 8)
        file.write(b"6")
    with pytest.raises(Corrupt, match="write-ahead log"):
        db.backup(tmp_path / "backups")
    assert backup.generations(tmp_path / "backups") == []


def test_a_list_of_files_cannot_lead_out_of_the_directory(db: Database, tmp_path: Path) -> None:
    db.backup(tmp_path / "backups")
    (listed,) = (tmp_path / "backups" / "generations").iterdir()
    body = listed.read_bytes().partition(b"\n")[2]
    for path in (b"cold/../../evil", b"/etc/evil", b"evil", b"cold/./x", b"cold//x"):
        forged = body.replace(b"database/tailrace.db", path)
        with pytest.raises(Corrupt):
            decode(digest(forged).encode() + b"\n" + forged, "here")


# -- damage


def test_every_damaged_file_of_a_backup_is_found_and_named(db: Database, tmp_path: Path) -> None:
    tiered(db)
    target = tmp_path / "backups"
    manifest = db.backup(target).manifest
    chance = random.Random(2)
    files = [path for path in sorted(target.rglob("*")) if path.is_file() and path.name != "LOCK"]
    # A write of housekeeping during the copy leaves a chunk behind that the backup does not need.
    needed = {chunk.hash for file in manifest.files for chunk in file.chunks}
    files = [path for path in files if path.parent.name == "generations" or path.name in needed]
    assert len(files) > 8
    for path in files:
        good = path.read_bytes()
        at = chance.randrange(len(good))
        flipped = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        for bad in (flipped, good[:-1], good + b"x", b"", None):
            path.unlink() if bad is None else path.write_bytes(bad)
            if bad is None and path.parent.name == "generations":
                continue
            with pytest.raises(Corrupt, match=path.name):
                backup.restore(target, tmp_path / "again")
            assert {each.name for each in tmp_path.iterdir()} == {"data", "backups"}, "nothing is left behind"
        path.write_bytes(good)
    backup.restore(target, tmp_path / "again")


def test_a_damaged_archive_is_found(db: Database, tmp_path: Path) -> None:
    tiered(db)
    for suffix in (".tar", ".tar.gz", ".tar.zst"):
        archive = tmp_path / f"backup{suffix}"
        db.backup(archive)
        good = archive.read_bytes()
        for at in range(100, len(good) - 20_000, len(good) // 7):
            archive.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
            try:
                backup.restore(archive, tmp_path / "again")
            except Error as error:
                assert isinstance(error, Corrupt | NotFound), error
                assert not (tmp_path / "again").exists()
            else:  # padding, or a field that says who made it and when
                assert check_database(tmp_path / "again", deep=True).findings == []
                shutil.rmtree(tmp_path / "again")
        archive.write_bytes(good[: len(good) // 2])
        with pytest.raises((Corrupt, NotFound)):
            backup.restore(archive, tmp_path / "again")


def test_an_object_that_was_damaged_is_found_by_deep_and_mended_by_the_next_when_removed(
    db: Database, tmp_path: Path
) -> None:
    tiered(db)
    target = tmp_path / "backups"
    db.backup(target)
    path = next((target / "objects").rglob("?" * 64))
    good = path.read_bytes()
    path.write_bytes(bytes(len(good)))
    with pytest.raises(Corrupt, match=path.name):
        db.backup(target, deep=True)
    path.unlink()
    db.backup(target, deep=True)
    assert path.read_bytes() == good
    backup.restore(target, tmp_path / "again")


# -- interruptions


@pytest.mark.parametrize("name", ["backup.copied", "backup.object", "backup.stored"])
def test_an_interrupted_backup_is_none_and_the_next_succeeds(db: Database, tmp_path: Path, name: str) -> None:
    rows = tiered(db)
    for target in (tmp_path / "backups", tmp_path / "one.tar"):
        failpoints.arm(name)
        with pytest.raises(failpoints.Failure):
            db.backup(target)
        if target.suffix:
            assert not target.exists()
        else:
            assert backup.generations(target) == []
            with pytest.raises(NotFound, match="no backups"):
                backup.restore(target, tmp_path / "again")
        db.backup(target)
        backup.restore(target, tmp_path / "again")
        same(tmp_path / "again", rows)
        shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("name", ["backup.copied", "backup.object=kill@3", "backup.stored"])
def test_a_backup_that_is_killed_leaves_no_generation_and_the_next_succeeds(
    data_dir: Path, tmp_path: Path, name: str
) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        rows = tiered(db)
    target = tmp_path / "backups"
    armed = name if "=" in name else f"{name}=kill"
    killed = run("backup", target, "--data", data_dir, TAILRACE_FAILPOINTS=armed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run("restore", target, "--list").stdout == ""
    done = run("backup", target, "--data", data_dir)
    assert done.returncode == 0, done.stderr
    assert not list(target.glob(".partial*"))
    backup.restore(target, tmp_path / "again")
    same(tmp_path / "again", rows)
    used = {digest for each in whole(target) for digest in each.chunks()}
    assert {path.name for path in (target / "objects").rglob("?" * 64)} == used, "what was left is used, or removed"


@pytest.mark.skipif(not can_mount(), reason="a really full disk needs a mount, and that root")
def test_a_full_disk_at_the_target_is_reported_and_harms_nothing(db: Database, tmp_path: Path) -> None:
    db.execute(CreateStream("noise", "application/octet-stream"))
    for _ in range(20):
        db.execute(Append("noise", os.urandom(500_000), "application/octet-stream"))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], check=True)
    try:
        for target in (small / "backups", small / "one.tar", small / "a" / "b.tar.zst"):
            with pytest.raises(Unavailable, match="no space left") as caught:
                db.backup(target)
            assert caught.value.code == "BACKUP_DISK_FULL"
            assert str(small) in str(caught.value)
            assert not target.is_dir() or backup.generations(target) == []
        shutil.rmtree(small / "backups")
        db.backup(tmp_path / "backups")
        fill_disk(small / "ballast")
        with pytest.raises(Unavailable, match="no space left"):
            backup.restore(tmp_path / "backups", small / "again")
        assert not (small / "again").exists()
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert db.execute(Append("noise", b"on", "application/octet-stream")).tail > 0


# -- buckets


def test_a_bucket_as_target_and_as_cold_storage(data_dir: Path, tmp_path: Path, endpoint: str, bucket: Any) -> None:
    options = KEYS | {"AWS_ENDPOINT_URL": endpoint}
    name = os.urandom(4).hex()
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        rows = tiered(db)
        store, target = store_of(db), f"s3://{BUCKET}/{name}/backups"
        first = backup.back_up(db._engine, target, cold=store, options=options)  # type: ignore[arg-type]
        second = backup.back_up(db._engine, target, cold=store, options=options, keep=1, deep=True)  # type: ignore[arg-type]
        assert second.manifest.written_bytes == 0
        assert second.removed == (first.manifest.id,)
    listed = backup.generations(target, options=options)
    assert [each.id for each in listed if isinstance(each, Manifest)] == [second.manifest.id]
    backup.restore(target, tmp_path / "again", options=options)
    same(tmp_path / "again", rows)
    cold = Store(f"s3://{BUCKET}/{name}/cold", options)
    backup.restore(target, tmp_path / "moved", cold=cold, options=options, deep=True)
    assert not (tmp_path / "moved" / "cold").exists()
    with tailrace.open(tmp_path / "moved", housekeeping_s=None, cold=ColdStorage(cold.url, options=options)) as moved:
        for which in WHICH:
            assert all_entries(moved, which) == rows[which.kind]
        third = moved.backup(tmp_path / "local", deep=True)  # from a bucket
        assert third.manifest.cold_files == second.manifest.cold_files
    backup.restore(tmp_path / "local", tmp_path / "back", deep=True)
    same(tmp_path / "back", rows)
    key = f"{name}/backups/{next(iter(second.manifest.files[0].chunks)).object}"
    bucket.put_object(Bucket=BUCKET, Key=key, Body=b"damage")
    with pytest.raises(Corrupt, match=key.rpartition("/")[2]):
        backup.restore(target, tmp_path / "none", options=options)
    assert not (tmp_path / "none").exists()
    bucket.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(Corrupt, match="missing"):
        backup.restore(target, tmp_path / "none", options=options)
    with pytest.raises(Unavailable, match="no bucket"), closing(backup.open_source(data_dir)) as source:
        backup.back_up(source, "s3://nowhere-at-all/x", cold=store, options=options)


# -- the command line, beside a server


def test_the_command_line_backs_up_beside_a_running_server_and_restores(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backups"
    with ServerProcess.tailrace(data) as server:
        connection = Connection(server.url)
        assert connection.ask("PUT", "s", {"Content-Type": TEXT}).status == 201
        for number in range(3):
            assert connection.ask("POST", "s", {"Content-Type": TEXT}, b"%d;" % number).status == 204
            done = run("backup", target, "--data", data, "--keep", "2")
            assert done.returncode == 0, done.stderr
            assert "copying the database ..." in done.stderr
            assert "new bytes stored" in done.stdout
        assert connection.ask("POST", "s", {"Content-Type": TEXT}, b"after;").status == 204
        refused = run("restore", target, data)
        assert refused.returncode == 1
        assert "not empty" in refused.stderr
    listed = run("restore", target, "--list")
    assert len(listed.stdout.splitlines()) == 2
    oldest = listed.stdout.split()[0]
    assert run("restore", target).returncode == 1
    for arguments, text in (((), b"0;1;2;"), (("--generation", oldest), b"0;1;")):
        again = tmp_path / f"again{len(arguments)}"
        done = run("restore", target, again, *arguments)
        assert done.returncode == 0, done.stderr
        with ServerProcess.tailrace(again) as server:
            assert Connection(server.url).read_all("s").body == text
        assert run("check", "--data", again, "--deep").returncode == 0


# -- the check


def test_the_check_sees_cold_storage_that_was_left_behind(db: Database, data_dir: Path, tmp_path: Path) -> None:
    """A copy of the database file alone looks whole and answers nothing of what is tiered."""
    tiered(db)
    copy = tmp_path / "copy"
    copy.mkdir()
    db._engine.copy_to(copy / "tailrace.db")  # type: ignore[attr-defined]
    shutil.copy(data_dir / "secret.key", copy)
    findings = check_database(copy).findings
    assert len(findings) == 3
    assert all("is missing" in finding and str(copy / "cold") in finding for finding in findings)
    assert check_database(copy, cold=data_dir / "cold", deep=True).findings == []
    checked = run("check", "--data", copy)
    assert checked.returncode == 1
    assert "is missing" in checked.stderr
    assert run("check", "--data", copy, "--cold", data_dir / "cold").returncode == 0
    settings = tmp_path / "settings.toml"
    settings.write_text(f'dev = true\n[cold]\nurl = "{data_dir}/cold"\n')
    assert run("check", "--data", copy, "--config", settings, "--deep").returncode == 0


def test_the_check_sees_files_of_cold_storage_that_are_missing_cut_or_damaged(db: Database, data_dir: Path) -> None:
    tiered(db)
    cold = data_dir / "cold"
    files = sorted(cold.glob("**/*.parquet"))
    assert len(files) == 9
    for file in files:
        good = file.read_bytes()
        file.unlink()
        assert any(file.name in finding and "missing" in finding for finding in check_database(data_dir).findings)
        file.write_bytes(good[:-1])
        assert any(file.name in finding for finding in check_database(data_dir).findings)
        middle = len(good) // 3
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        assert check_database(data_dir).findings == [], "the size is right"
        file.write_bytes(bytes(len(good)))
        assert any(file.name in finding for finding in check_database(data_dir, deep=True).findings)
        file.write_bytes(good)
    assert check_database(data_dir, deep=True).findings == []
    last = max((cold / "streams" / "_delta_log").glob("*.json"))
    last.rename(cold / "aside")
    assert any("generation 0" in finding for finding in check_database(data_dir).findings)
    (cold / "aside").rename(last)
    shutil.move(cold / "streams", cold / "was")
    assert any("streams is missing" in finding for finding in check_database(data_dir).findings)


def test_the_check_sees_cold_storage_of_another_database(db: Database, data_dir: Path, tmp_path: Path) -> None:
    tiered(db)
    with tailrace.open(tmp_path / "other", housekeeping_s=None) as other:
        tiered(other)
    findings = check_database(data_dir, cold=tmp_path / "other" / "cold").findings
    assert len(findings) == 3
    assert all("belongs to database" in finding for finding in findings)
