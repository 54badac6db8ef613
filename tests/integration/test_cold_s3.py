"""Cold storage in a bucket, through a real S3 API: all that a directory does, a bucket does."""

from __future__ import annotations

import contextlib
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.cold import compacting, reading
from tailrace.cold.cache import ColdCache
from tailrace.cold.schemas import place_of
from tailrace.cold.store import Store
from tailrace.cold.writing import committed_metadata, write_rows
from tailrace.errors import Corrupt, Invalid, Unavailable
from tailrace.log.cold import ColdMiss, ColdRange
from tests.support.patience import AT_ONCE_S, PATIENCE_S
from tests.unit.cold.rows import ORDERS, change_rows, entries, positions, stream_rows, tiered, whole

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "not-to-be-shown", "AWS_REGION": "us-east-1"}
BUCKET = "history"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "moto_server ended"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="not-to-be-shown",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture
def store(endpoint: str, bucket: Any) -> Store:
    return Store(f"s3://{BUCKET}/{uuid4().hex}", KEYS | {"AWS_ENDPOINT_URL": endpoint})


def key_of(store: Store, place: str, path: str) -> str:
    return f"{store.uri(place)}/{path}".removeprefix(f"s3://{BUCKET}/")


def test_round_trip_of_every_kind_of_name(store: Store) -> None:
    for name in ("orders", "a b/c", "..", "50%"):
        place = place_of("table", name)
        batch = change_rows(entries(7, 0, 100), records=2)
        assert tiered(store, place, [batch], 1)[0] == "committed"
        assert tiered(store, place, [batch], 1)[0] == "already"
        assert whole(store, place, 7, 0, 100).equals(pa.Table.from_batches([batch]))
        found = committed_metadata(store, place, "tier", 1)
        assert found is not None and found["generation"] == 1


def test_the_environment_is_enough(store: Store, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": endpoint}).items():
        monkeypatch.setenv(name, value)
    bare = Store(store.url)
    assert positions(bare, ORDERS, 7, 0, 10) == list(range(10))
    assert positions(pickle.loads(pickle.dumps(bare)), ORDERS, 7, 0, 10) == list(range(10))


def test_a_file_of_several_parts(store: Store) -> None:
    """Larger than what goes up in one request."""
    import os

    batches = [stream_rows([entry]) for entry in entries(3, 0, 24)]
    index = batches[0].schema.get_field_index("body")
    noise = [
        batch.set_column(index, batch.schema.field(index), pa.array([os.urandom(1024 * 1024)], pa.binary()))
        for batch in batches
    ]
    _, (written,) = tiered(store, "streams", noise, 1)
    assert written.size > 20 * 1024 * 1024
    assert whole(store, "streams", 3, 0, 24).equals(pa.Table.from_batches(noise))


def test_drivers_race_from_the_creation_on(store: Store) -> None:
    results: dict[int, list[str]] = {}
    barrier = threading.Barrier(3)

    def drive(number: int) -> None:
        mine = pickle.loads(pickle.dumps(store))
        barrier.wait()
        results[number] = [
            tiered(mine, ORDERS, [change_rows(entries(7, 10 * g, 10 * g + 10))], g + 1)[0] for g in range(4)
        ]

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcomes in zip(*results.values(), strict=True):
        assert sorted(outcomes) == ["already", "already", "committed"]
    assert positions(store, ORDERS, 7, 0, 40) == list(range(40))


def test_compaction_retention_and_vacuum(store: Store, bucket: Any) -> None:
    for generation in range(5):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10))], generation + 1)
    listed_before = reading.files(store, ORDERS, 7, 0, 50)
    (step,) = compacting.plan(store, ORDERS)
    written = compacting.rewrite(store, step)
    tiered(store, ORDERS, [change_rows(entries(7, 50, 60))], 6)
    compacting.replace(store, step, written)
    orphan = write_rows(store, ORDERS, [change_rows(entries(7, 60, 70))])
    assert compacting.vacuum(store, ORDERS) == []
    assert len(compacting.vacuum(store, ORDERS, hours=0)) == 5 + len(orphan)
    # Who listed the files before goes on with those that took their place.
    batches = reading.read(store, listed_before, 7, 0, 50, ["position"])
    assert [at for batch in batches for at in batch.column(0).to_pylist()] == list(range(50))
    assert compacting.forget(store, ORDERS, {7: 25}).dropped == 25
    assert positions(store, ORDERS, 7, 25, 60) == list(range(25, 60))


def test_the_cold_cache_reads_a_bucket(store: Store) -> None:
    tiered(store, "streams", [stream_rows(entries(3, 0, 700, width=7)), stream_rows(entries(4, 0, 90))], 1)
    cache, tier = ColdCache(store), ColdRange(3, 0, 700, "streams")
    with pytest.raises(ColdMiss) as missing:
        cache.segment(tier, 10)
    cache.fetch(missing.value)
    assert cache.segment(tier, 10) == entries(3, 0, 700, width=7)[1:]


def test_lost_and_damaged_objects_are_named(store: Store, bucket: Any) -> None:
    _, (written,) = tiered(store, ORDERS, [change_rows(entries(7, 0, 1000))], 1)
    key = key_of(store, ORDERS, written.path)
    sound = bucket.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    named = f"{store.uri(ORDERS)}/{written.path}"
    for spoilt in (sound[:100], sound[:-200], b"", sound[:1000] + b"\xff" * 600 + sound[1600:]):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=spoilt)
        with pytest.raises(Corrupt, match=named):
            whole(Store(store.url, store.storage_options), ORDERS, 7, 0, 1000)
    bucket.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(Corrupt, match=f"{named} is missing"):
        positions(store, ORDERS, 7, 0, 1000)
    bucket.put_object(Bucket=BUCKET, Key=key, Body=sound)
    assert positions(store, ORDERS, 7, 0, 1000) == list(range(1000))


def test_a_missing_bucket_and_an_unreachable_server(store: Store, endpoint: str) -> None:
    missing = Store("s3://no-such-bucket/x", KEYS | {"AWS_ENDPOINT_URL": endpoint})
    for use in (lambda: missing.delta(ORDERS), lambda: tiered(missing, ORDERS, [change_rows(entries(7, 0, 1))], 1)):
        with pytest.raises(Unavailable, match="no bucket 'no-such-bucket'; create it"):
            use()
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    files = reading.files(store, ORDERS, 7)
    away = Store(store.url, KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0"})
    with pytest.raises(Unavailable, match="cannot be used; check") as caught:  # not Corrupt: the file is fine
        list(reading.read(away, files, 7, 0, 10))
    assert "not-to-be-shown" not in str(caught.value)


def test_another_database_is_refused(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    with pytest.raises(Invalid, match="database db-1, but this is database db-2"):
        tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 2, database="db-2")


def test_others_read_the_bucket_without_us(store: Store) -> None:
    for generation in range(2):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10))], generation + 1)
    dataset = DeltaTable(store.uri(ORDERS), storage_options=store.storage_options).to_pyarrow_dataset()  # noqa: F841
    assert duckdb.sql("select count(*), min(position), max(next) from dataset").fetchall() == [(20, 0, 20)]


def test_a_fetch_from_a_bucket_does_not_hold_up_other_threads(store: Store) -> None:
    """The event loop of the server is one of them. Here it is the thread that answers: only if it runs meanwhile, the
    fetch ends before its time-out."""
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        deaf.settimeout(0.1)
        options = KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{deaf.getsockname()[1]}", "max_retries": "0"}
        slow = Store(store.url, options | {"timeout": f"{PATIENCE_S:.0f}s"})
        files = reading.files(store, ORDERS, 7)
        failed: list[BaseException] = []

        def read() -> None:
            try:
                list(reading.read(slow, files, 7, 0, 10))
            except Unavailable as error:
                failed.append(error)

        began = time.monotonic()
        thread = threading.Thread(target=read)
        thread.start()
        while thread.is_alive():
            with contextlib.suppress(TimeoutError):
                connection, _ = deaf.accept()
                connection.close()  # which the fetch takes for an error
        assert failed
        assert time.monotonic() - began < AT_ONCE_S
