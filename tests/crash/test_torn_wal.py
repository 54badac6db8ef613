"""A write-ahead log that was cut off is recovered to the end of some commit; one that is damaged is refused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.errors import Corrupt
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.producer import PRODUCERS, ProducerClaim
from tailrace.streams.queries import ReadStream
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TEXT = "text/plain"
CHECKPOINTED = 10  # commits that are in the database file itself
COMMITS = 40
HEADER, FRAME = 32, 24 + 4096


def body(number: int) -> bytes:
    """Of different lengths, so that commits have one frame or many."""
    return b"%d " % number + b"x" * (number % 5 * 3000) + b";"


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a database as a kill leaves them: some commits in the file, more in the WAL."""
    root = tmp_path_factory.mktemp("torn")
    with tailrace.open(root / "data", housekeeping_s=None) as db:
        db.execute(CreateStream("s", TEXT))
        for number in range(CHECKPOINTED):
            db.execute(Append("s", body(number), TEXT, ProducerClaim("p", 0, number)))
    db = tailrace.open(root / "data", housekeeping_s=None)
    for number in range(CHECKPOINTED, COMMITS):
        db.execute(Append("s", body(number), TEXT, ProducerClaim("p", 0, number)))
    files = root / "files"
    files.mkdir()
    for name in ("tailrace.db", "tailrace.db-wal", "secret.key"):
        shutil.copy(root / "data" / name, files / name)
    db.close()
    return files


def recovered(directory: Path, *, accept_loss: bool = False) -> int:
    """How many commits a damaged database opens with; that it is those, all of each, and that it can be used."""
    with tailrace.open(directory, housekeeping_s=None, accept_loss=accept_loss) as db:
        found = db.execute(ReadStream("s", bytes_max=10**9))
        count = len(found.page.entries)
        assert [entry.body for entry in found.page.entries] == [body(number) for number in range(count)]
        with db._engine.reader() as reader:
            producer = reader.get(PRODUCERS, found.log.id, "p")
        assert producer is not None
        assert producer.sequence == count - 1, "the producer's state commits with its entry"
        db.execute(Append("s", body(count), TEXT, ProducerClaim("p", 0, count)))
        assert db.execute(Append("s", body(count), TEXT, ProducerClaim("p", 0, count))).duplicate
    assert check_database(directory).findings == []
    return count


def damaged(crashed: Path, tmp_path: Path, wal: bytes) -> int:
    directory = tmp_path / "damaged"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(crashed, directory)
    (directory / "tailrace.db-wal").write_bytes(wal)
    count = recovered(directory)
    assert CHECKPOINTED <= count <= COMMITS, "what is in the database file does not depend on the WAL"
    return count


def test_a_wal_cut_off_anywhere_recovers_to_a_commit(crashed: Path, tmp_path: Path) -> None:
    wal = (crashed / "tailrace.db-wal").read_bytes()
    assert damaged(crashed, tmp_path, wal) == COMMITS, "undamaged, all is there"
    edges = [HEADER + FRAME * number for number in range((len(wal) - HEADER) // FRAME + 1)]
    cuts = {edge + offset for edge in edges for offset in (-4096, -1, 0, 1, 24, 2000)} | {0, 1, HEADER - 1}
    counts = [damaged(crashed, tmp_path, wal[:cut]) for cut in sorted(cuts) if 0 <= cut < len(wal)]
    assert counts == sorted(counts), "a longer WAL recovers at least as much"
    assert len(set(counts)) == COMMITS - CHECKPOINTED, "each commit was once the last one"


def test_damage_is_refused_unless_it_may_be_a_torn_last_commit(crashed: Path, tmp_path: Path) -> None:
    """Without a wal-index, as after a power loss: only the last commit may be incomplete. Where the loss is accepted,
    everything before the damage is recovered, and the damaged file is kept."""
    wal = (crashed / "tailrace.db-wal").read_bytes()
    chance = random.Random(1)
    directory = tmp_path / "damaged"
    counts = set()
    for _ in range(rounds(60)):
        torn = bytearray(wal)
        at = chance.randrange(len(wal))
        size = chance.choice([1, 8, 512, 4096])
        torn[at : at + size] = chance.choice([chance.randbytes(size), bytes(size), b"\xff" * size])
        torn = torn[: len(wal)]
        if torn == wal:
            continue
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(crashed, directory)
        (directory / "tailrace.db-wal").write_bytes(torn)
        try:
            count = recovered(directory)
            # A frame proves that the one before it was there, unless the header of that one is overwritten too: then
            # damage of many bytes may look like the torn end of the commit before the last.
            headers = [edge for edge in range(HEADER, len(wal), FRAME) if at < edge + 24 and edge < at + size]
            assert count >= COMMITS - (2 if headers else 1), f"{COMMITS - count} commits were lost without a word"
        except Corrupt as error:
            assert error.code == "WAL_DAMAGED"
            assert "tailrace.db-wal" in str(error)
            assert (directory / "tailrace.db-wal").read_bytes() == torn, "what was refused is as it was"
            count = recovered(directory, accept_loss=True)
            (kept,) = directory.glob("damaged-*")
            assert (kept / "tailrace.db-wal").read_bytes() == torn
            assert kept.stat().st_mode & 0o777 == 0o700
            assert (kept / "tailrace.db-wal").stat().st_mode & 0o777 == 0o600
        assert CHECKPOINTED <= count <= COMMITS
        counts.add(count)
    assert len(counts) > 10


def test_what_lies_behind_the_last_commit_is_ignored(crashed: Path, tmp_path: Path) -> None:
    wal = (crashed / "tailrace.db-wal").read_bytes()
    chance = random.Random(2)
    for tail in (bytes(FRAME), chance.randbytes(FRAME), chance.randbytes(100), wal[HEADER : HEADER + 3 * FRAME]):
        assert damaged(crashed, tmp_path, wal + tail) == COMMITS
