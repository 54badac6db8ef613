"""The cold cache: entries exactly as they were, in bounded memory, read once for all who ask."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tailrace import limits
from tailrace.cold import cache as cold_cache
from tailrace.cold import compacting, reading
from tailrace.cold.cache import ColdCache
from tailrace.cold.store import Store
from tailrace.errors import Corrupt
from tailrace.log.cold import ColdMiss, ColdRange
from tailrace.log.entry import Entry
from tests.unit.cold.rows import ORDERS, change_rows, entries, message_rows, stream_rows, tiered


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def get(cache: ColdCache, tier: ColdRange, position: int) -> list[Entry]:
    """As the database does it."""
    for _ in range(10):
        try:
            return cache.segment(tier, position)
        except ColdMiss as missing:
            cache.fetch(missing)
    raise AssertionError("fetched ten times and still missing")


def all_of(cache: ColdCache, tier: ColdRange) -> list[Entry]:
    found: list[Entry] = []
    position = tier.start
    while position < tier.tiered:
        found += get(cache, tier, position)
        position = found[-1].next
    return found


def test_entries_of_every_kind_come_back_exactly(store: Store) -> None:
    wide = entries(3, 0, 700, width=7)
    single = entries(4, 1, 300)
    tiered(store, "streams", [stream_rows(wide)], 1)
    tiered(store, ORDERS, [change_rows(single, records=3)], 1)
    tiered(store, "topics/t", [message_rows(entries(5, 0, 50), 0), message_rows(entries(6, 0, 60), 1)], 1)
    cache = ColdCache(store)
    assert all_of(cache, ColdRange(3, 0, 700, "streams")) == wide
    assert all_of(cache, ColdRange(4, 1, 300, ORDERS)) == single
    assert all_of(cache, ColdRange(5, 0, 50, "topics/t")) == entries(5, 0, 50)
    assert all_of(cache, ColdRange(6, 0, 60, "topics/t")) == entries(6, 0, 60)


def test_a_run_begins_with_the_entry_that_covers_the_position(store: Store) -> None:
    tiered(store, "streams", [stream_rows(entries(3, 0, 700, width=7))], 1)
    tier = ColdRange(3, 0, 700, "streams")
    for position in (0, 1, 6, 7, 350, 356, 699):
        run = get(ColdCache(store), tier, position)
        assert run[0].position == position // 7 * 7
        assert run[-1].next == 700


def test_run_never_reads(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(3, 0, 100))], 1)
    cache, tier = ColdCache(store), ColdRange(3, 0, 100, ORDERS)
    with pytest.raises(ColdMiss) as caught:
        cache.segment(tier, 50)
    assert caught.value.tier == tier and caught.value.position == 50
    assert (cache.hits, cache.fetches, cache.bytes) == (0, 0, 0)
    cache.fetch(caught.value)
    assert cache.segment(tier, 99)[0].position == 99
    assert (cache.hits, cache.fetches) == (1, 1) and cache.bytes > 0
    with pytest.raises(ColdMiss):  # it began at 50
        cache.segment(tier, 49)


def test_a_reader_in_order_fetches_each_row_group_once(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(3, 0, 100_000))], 1)
    cache = ColdCache(store)
    assert len(all_of(cache, ColdRange(3, 0, 100_000, ORDERS))) == 100_000
    assert cache.fetches == 2


def test_memory_is_bounded_and_the_oldest_go_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_CACHE_SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(limits, "COLD_GROUP_ROWS", 100)
    tiered(store, ORDERS, [change_rows(entries(3, 0, 5_000, size=200))], 1)
    cache, tier = ColdCache(store, capacity_bytes=200_000), ColdRange(3, 0, 5_000, ORDERS)
    chance = random.Random(3)
    for _ in range(200):
        position = chance.randrange(5_000)
        assert get(cache, tier, position)[0].position == position
        assert cache.bytes <= 200_000
        assert cache.bytes == sum(segment.bytes for segment in cache._segments.values())
        assert sorted(cache._segments) == sorted((log, at) for log, starts in cache._starts.items() for at in starts)
    get(cache, tier, 0)
    for position in range(1_000, 5_000, 100):
        get(cache, tier, 0)  # used all the time: stays
        get(cache, tier, position)
    fetched = cache.fetches
    cache.segment(tier, 0)
    assert cache.fetches == fetched
    with pytest.raises(ColdMiss):
        cache.segment(tier, 1_000)


def test_an_entry_larger_than_the_cold_cache_is_served(store: Store) -> None:
    large = entries(3, 0, 3, size=2 * limits.MiB)
    tiered(store, "streams", [stream_rows(large)], 1)
    cache = ColdCache(store, capacity_bytes=1000)
    assert all_of(cache, ColdRange(3, 0, 3, "streams")) == large


def test_fetched_segments_stay_until_they_are_read(store: Store) -> None:
    for log in (1, 2):
        tiered(store, "streams", [stream_rows(entries(log, 0, 50))], log)
    cache, one, two = ColdCache(store, capacity_bytes=1), ColdRange(1, 0, 50, "streams"), ColdRange(2, 0, 50, "streams")
    cache.fetch(ColdMiss(one, 0))
    cache.fetch(ColdMiss(two, 0))
    assert cache.segment(one, 0) == entries(1, 0, 50)  # though the cold cache is full without it
    assert cache.segment(two, 0) == entries(2, 0, 50)
    cache.fetch(ColdMiss(one, 50 - 1))
    assert len(cache._segments) <= 2


def test_readers_that_push_each_other_out_all_arrive(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_CACHE_SEGMENT_BYTES", 2_000)
    monkeypatch.setattr(limits, "COLD_GROUP_ROWS", 20)
    for log in range(1, 9):
        tiered(store, "streams", [stream_rows(entries(log, 0, 200, size=100))], log)
    cache, found, failed = ColdCache(store, capacity_bytes=1), {}, []

    def go(log: int) -> None:
        try:
            found[log] = all_of(cache, ColdRange(log, 0, 200, "streams"))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=go, args=(log,)) for log in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert found == {log: entries(log, 0, 200, size=100) for log in range(1, 9)}


def test_who_asks_for_the_same_shares_one_fetch_and_few_read_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for log in range(1, 11):
        tiered(store, "streams", [stream_rows(entries(log, 0, 50))], log)
    under_way = [0, 0]
    lock, real = threading.Lock(), cold_cache.rows

    def slow(*arguments: object) -> object:
        with lock:
            under_way[0] += 1
            under_way[1] = max(under_way)
        time.sleep(0.05)
        yield from real(*arguments)
        with lock:
            under_way[0] -= 1

    monkeypatch.setattr(cold_cache, "rows", slow)
    cache = ColdCache(store)
    barrier = threading.Barrier(40)

    def go(log: int, position: int) -> None:
        barrier.wait()
        cache.fetch(ColdMiss(ColdRange(log, 0, 50, "streams"), position))

    threads = [threading.Thread(target=go, args=(log, 5)) for log in range(1, 11) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.fetches == 10
    assert under_way[1] <= limits.COLD_CACHE_FETCHES_MAX
    assert cache._flights == {}


# -- what changes below


def test_what_is_tiered_later_is_found(store: Store) -> None:
    cache = ColdCache(store)
    tiered(store, ORDERS, [change_rows(entries(3, 0, 10))], 1)
    assert get(cache, ColdRange(3, 0, 10, ORDERS), 5)[0].position == 5
    tiered(store, ORDERS, [change_rows(entries(3, 10, 20))], 2)
    assert get(cache, ColdRange(3, 0, 20, ORDERS), 15)[0].position == 15


def test_compaction_and_vacuum_behind_its_back(store: Store) -> None:
    for generation in range(5):
        tiered(store, ORDERS, [change_rows(entries(3, 10 * generation, 10 * generation + 10))], generation + 1)
    cache, tier = ColdCache(store), ColdRange(3, 0, 50, ORDERS)
    get(cache, tier, 45)
    compacting.compact(store, ORDERS)
    assert len(compacting.vacuum(store, ORDERS, hours=0)) == 5
    assert all_of(cache, tier) == entries(3, 0, 50)


def test_a_lost_or_damaged_file_is_named_and_can_be_put_back(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(3, 0, 10))], 1)
    cache, tier = ColdCache(store), ColdRange(3, 0, 10, ORDERS)
    (file,) = reading.files(store, ORDERS, 3)
    path = Path(store.uri(ORDERS), file.path)
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(Corrupt, match=str(path)):
        get(cache, tier, 5)
    path.unlink()
    with pytest.raises(Corrupt, match=f"{path} is missing"):
        get(cache, tier, 5)
    path.write_bytes(sound)
    assert get(cache, tier, 5)[0].position == 5
    with pytest.raises(Corrupt, match="position 99 of log 3 should be in cold storage"):
        get(cache, ColdRange(3, 0, 100, ORDERS), 99)


def test_what_comes_before_a_lost_or_damaged_file_is_read(store: Store) -> None:
    """However little that is: a fetch wants more than one small file has."""
    for generation in range(3):
        tiered(store, ORDERS, [change_rows(entries(3, 10 * generation, 10 * generation + 10))], generation + 1)
    tier = ColdRange(3, 0, 30, ORDERS)
    file = next(each for each in reading.files(store, ORDERS, 3) if each.position_min == 10)
    path = Path(store.uri(ORDERS), file.path)
    sound = path.read_bytes()
    for spoilt in (None, sound[: len(sound) // 2], sound[:200] + bytes(50) + sound[250:]):
        path.unlink() if spoilt is None else path.write_bytes(spoilt)
        cache = ColdCache(Store(store.url))
        assert get(cache, tier, 0) == entries(3, 0, 10)
        for position in (10, 19):
            with pytest.raises(Corrupt, match=str(path)):
                get(cache, tier, position)
        assert get(cache, tier, 20) == entries(3, 20, 30)
        path.write_bytes(sound)
        assert all_of(cache, tier) == entries(3, 0, 30)


def test_nothing_above_the_mark_is_read(store: Store) -> None:
    """A batch that was committed is verified before it is marked; until then its files may be damaged, or another's."""
    tiered(store, ORDERS, [change_rows(entries(3, 0, 10))], 1)
    _, (above,) = tiered(store, ORDERS, [change_rows(entries(3, 10, 20))], 2)
    Path(store.uri(ORDERS), above.path).unlink()
    cache = ColdCache(store)
    assert all_of(cache, ColdRange(3, 0, 10, ORDERS)) == entries(3, 0, 10)
    tiered(store, ORDERS, [change_rows(entries(3, 20, 30))], 3)
    compacting.forget(store, ORDERS, {3: 20})  # the lost file with it
    assert all_of(cache, ColdRange(3, 20, 25, ORDERS)) == entries(3, 20, 25)


def test_an_entry_without_a_body_is_damage(store: Store) -> None:
    batch = change_rows(entries(3, 0, 10), records=2)
    bodies = batch.column("body").to_pylist()
    bodies[8] = None
    index = batch.schema.get_field_index("body")
    import pyarrow as pa

    tiered(store, ORDERS, [batch.set_column(index, batch.schema.field(index), pa.array(bodies, pa.binary()))], 1)
    with pytest.raises(Corrupt, match="position 4 has no body"):
        get(ColdCache(store), ColdRange(3, 0, 10, ORDERS), 0)
    with pytest.raises(Corrupt, match="position 4 has no body"):
        get(ColdCache(store), ColdRange(3, 0, 10, ORDERS), 4)


def test_where_a_time_begins_is_looked_up_once(store: Store) -> None:
    first, second = entries(3, 0, 300), entries(4, 0, 200)
    tiered(store, "streams", [stream_rows(first[:150]), stream_rows(second)], 1)
    tiered(store, "streams", [stream_rows(first[150:])], 2)
    cache, tier = ColdCache(store), ColdRange(3, 0, 300, "streams")
    times = [entry.at_ms for entry in first]
    for at_ms in (times[0] - 5, times[0], times[149], times[150], times[299], times[299] + 1):
        expected = next((entry.position for entry in first if entry.at_ms >= at_ms), 300)
        with pytest.raises(ColdMiss) as caught:
            cache.first_since(tier, at_ms)
        cache.fetch(caught.value)
        assert cache.first_since(tier, at_ms) == expected
