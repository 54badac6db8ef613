"""One flipped bit in the database file: every answer is the right one or an error, and `check` finds it."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

import tailrace
from tailrace.check import check_database
from tailrace.errors import Corrupt
from tailrace.storage import pages, vault, wal
from tailrace.storage.sqlite import FILE
from tests.crash.bit_rot import STREAMS, answers, extend, fill
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rot") / "data"
    fill(directory)
    assert not (directory / f"{FILE}-wal").exists()
    return directory


@pytest.fixture(scope="module")
def expected(stopped: Path) -> dict[str, Any]:
    with tailrace.open(stopped, housekeeping_s=None) as db:
        found = answers(db)
    assert Corrupt not in found.values()
    assert found["get 1"] is not None
    assert found["get 0"] is None
    return found


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def bits(path: Path, count: int, seed: int) -> list[int]:
    """Some anywhere, some in the header of the file, some in the headers of pages, where trees are held together."""
    chance = random.Random(seed)
    size = path.stat().st_size
    anywhere = [chance.randrange(size * 8) for _ in range(count * 5 // 8)]
    header = [chance.randrange(100 * 8) for _ in range(count // 8)]
    heads = [chance.randrange(size // 4096) * 4096 * 8 + chance.randrange(64 * 8) for _ in range(count // 4)]
    return anywhere + header + heads + [20 * 8 + bit for bit in range(8)]


def assert_right_or_refused(found: dict[str, Any], expected: dict[str, Any]) -> int:
    wrong = {name: answer for name, answer in found.items() if answer is not Corrupt and answer != expected[name]}
    assert wrong == {}
    return sum(1 for answer in found.values() if answer is Corrupt)


def test_a_flip_after_a_clean_stop(stopped: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    refused = answered = errors = 0
    directory = tmp_path / "data"
    for bit in bits(stopped / FILE, rounds(120), 1):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(stopped, directory)
        flip(directory / FILE, bit)
        try:
            report = check_database(directory)
        except Corrupt:
            pass
        else:
            assert report.findings, f"check does not see bit {bit}"
        try:
            db = tailrace.open(directory, housekeeping_s=None)
        except Corrupt:
            refused += 1
            continue
        with db:
            found = answers(db)
        errors += assert_right_or_refused(found, expected)
        answered += Corrupt not in found.values()
    assert refused
    assert errors


def test_a_flip_under_a_running_database(stopped: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    """Readers that are opened afterwards, and those whose memory was given up, see it."""
    errors = 0
    directory = tmp_path / "data"
    for bit in bits(stopped / FILE, rounds(60), 2):
        if bit // 8 == 20:
            continue  # page 1 is read once a connection; its mark is looked at when a database is opened
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(stopped, directory)
        with tailrace.open(directory, housekeeping_s=None) as db:
            db.tables()
            flip(directory / FILE, bit)
            db._engine._close_idle()
            db._engine.cache.clear()
            errors += assert_right_or_refused(answers(db), expected)
    assert errors


def test_check_names_the_page_and_what_it_holds(stopped: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(stopped, directory)
    data = (directory / FILE).read_bytes()
    at = data.index(b"streams/7/*")
    flip(directory / FILE, at * 8)
    findings = check_database(directory).findings
    assert f"page {at // 4096 + 1} (users) fails its checksum" in findings[0]


def test_reads_of_other_data_go_on_and_errors_say_what_to_do(stopped: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(stopped, directory)
    data = (directory / FILE).read_bytes()
    flip(directory / FILE, data.index(b"streams/7/*") * 8)
    with ServerProcess.tailrace(directory) as server, httpx.Client(base_url=server.url) as http:
        assert http.get("/v1/stream/stream-1", params={"offset": "-1"}).status_code == 200
        refused = http.get("/v1/admin/users")
        assert refused.status_code == 500
        assert "tailrace check" in refused.text


def test_a_database_without_checksums_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    fill(plain)
    source = apsw.Connection(str(plain / FILE))
    data = tmp_path / "data"
    data.mkdir()
    old = apsw.Connection(str(data / FILE))
    for (statement,) in source.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall():
        old.execute(statement)
    for (name,) in source.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        for row in source.execute(f"SELECT * FROM {name}"):
            old.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
    ((version,),) = source.execute("PRAGMA user_version").fetchall()
    old.execute(f"PRAGMA user_version = {version}; PRAGMA journal_mode = WAL")
    source.close()
    old.close()
    shutil.copy(plain / vault.FILE, data / vault.FILE)
    (data / f"{FILE}.with-checksums").write_bytes(b"what a kill left")
    assert not pages.kept(data / FILE)
    assert check_database(data).findings == []
    with tailrace.open(plain, housekeeping_s=None) as db:
        expected = answers(db)
    with tailrace.open(data, housekeeping_s=None) as db:
        assert answers(db) == expected
    assert pages.kept(data / FILE)
    assert list(pages.damaged(data / FILE)) == []
    assert sorted(os.listdir(data)) == sorted({*os.listdir(data)} - {f"{FILE}.with-checksums"})
    assert check_database(data).findings == []


def test_a_page_that_a_checkpoint_was_writing_when_the_power_failed_is_read_from_the_log(tmp_path: Path) -> None:
    """Half of it is new and its checksum is wrong; that is no damage, as the log still has all of it."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with tailrace.open(data, housekeeping_s=None) as db:
        extend(db)
        db._engine.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        for number in range(50):
            db.table("orders").put({"id": f"o-{number:03}", "city": "Bern", "text": "z" * 500})
        expected = answers(db)
        copy.mkdir()
        for name in (FILE, f"{FILE}-wal", vault.FILE):
            shutil.copy(data / name, copy / name)
    torn = wal.pages(copy / FILE)
    assert len(torn) > 10
    with open(copy / FILE, "r+b") as file:
        for number in torn:
            if number * 4096 <= (copy / FILE).stat().st_size:
                file.seek((number - 1) * 4096 + 2048)
                file.write(os.urandom(2048))
    assert check_database(copy).findings == []
    with tailrace.open(copy, housekeeping_s=None) as db:
        assert answers(db) == expected
    assert check_database(copy).findings == []
    assert list(pages.damaged(copy / FILE)) == []


def test_answers_over_http_are_right_or_errors(stopped: Path, tmp_path: Path) -> None:
    """As an outsider sees it: status and body of every answer are as before, or the status is 500."""
    plain = tmp_path / "plain"
    shutil.copytree(stopped, plain)
    with ServerProcess.tailrace(plain) as server:
        expected = over_http(server.url)
    assert {name: answer for name, answer in expected.items() if answer[0] != 200} == {}
    errors = 0
    for number, bit in enumerate(bits(stopped / FILE, rounds(8), 3)[: rounds(5)]):
        directory = tmp_path / str(number)
        shutil.copytree(stopped, directory)
        flip(directory / FILE, bit)
        server = ServerProcess.tailrace(directory)
        try:
            server.start()
        except Exception:  # refused: it says why and ends
            assert "damaged" in server.output
            errors += 1
            continue
        try:
            found = over_http(server.url)
        finally:
            server.kill()
        for name, (status, body) in found.items():
            assert status == 500 or (status, body) == expected[name], f"{name}: {status} {body[:200]!r}"
            errors += status == 500
    assert errors


def over_http(url: str) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
        for path in STREAMS:
            answer = http.get(f"/v1/stream/{path}", params={"offset": "-1"})
            found[path] = (answer.status_code, answer.content)
        for path in ("/v1/admin/users", "/v1/topics"):
            answer = http.get(path)
            found[path] = (answer.status_code, answer.content)
        for name, body in (
            ("Scan", {"TableName": "orders"}),
            ("GetItem", {"TableName": "orders", "Key": {"id": {"S": "o-007"}}}),
            (
                "Query",
                {
                    "TableName": "orders", "IndexName": "by-city", "KeyConditionExpression": "city = :c",
                    "ExpressionAttributeValues": {":c": {"S": "c3"}},
                },
            ),
        ):  # fmt: skip
            headers = {"X-Amz-Target": f"DynamoDB_20120810.{name}", "Content-Type": "application/x-amz-json-1.0"}
            headers["Authorization"] = (
                f"AWS4-HMAC-SHA256 Credential=a/{now[:8]}/local/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
            )
            headers["X-Amz-Date"] = now
            answer = http.post("/", json=body, headers=headers)
            found[name] = (answer.status_code, answer.content)
    return found
