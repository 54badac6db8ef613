"""What people do in the console: log in, follow messages, edit, restore, follow a write, reset a group."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.console.demo import Shop, followed_write
from tests.support.chromium import Chromium, Tab
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

TOKEN = "the-token-of-this-test-server"
PASSWORD = "correct horse battery"
ROWS = "[...document.querySelectorAll('.v-row')].filter(row => !row.hidden).map(row => row.innerText)"


def item_address(console: str, key: str) -> str:
    return f"{console}#/tables/orders/item?{urlencode({'key': json.dumps({'id': key})})}"


# -- messages


FRAMES = """
(() => {
  const began = performance.now()
  let last = began
  window.frames_ = { count: 0, longest: 0 }
  const tick = (mine) => (now) => {
    if (mine !== window.frames_) return
    mine.count++
    mine.longest = Math.max(mine.longest, now - last)
    last = now
    mine.ms = now - began
    requestAnimationFrame(tick(mine))
  }
  requestAnimationFrame(tick(window.frames_))
})()
"""
ALL_MESSAGES = """
(async () => {
  const list = document.querySelector('.v-list')
  const found = new Map()
  for (let top = 0; ; top += list.clientHeight) {
    list.scrollTop = top
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
    for (const row of document.querySelectorAll('.v-row')) {
      if (!row.hidden) found.set(new DOMMatrix(row.style.transform).m42 / 24, JSON.parse(row.lastChild.textContent).n)
    }
    if (top + list.clientHeight >= list.scrollHeight) break
  }
  return [...found].sort(([a], [b]) => a - b)
})()
"""


def write_messages(shop: Shop, path: str, count: int) -> None:
    for start in range(0, count, 50):
        body = json.dumps([{"n": number, "text": "some text of a message"} for number in range(start, start + 50)])
        answer = shop.http.post(f"/v1/stream/{path}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 204


def test_a_live_stream_keeps_up_with_a_thousand_messages_a_second(browser: Chromium, shop: Shop, console: str) -> None:
    """Every message arrives once and in order, the document stays small, and the page goes on drawing: frames come at
    a fifth or more of the rate at which they come while the same messages go to a stream that no one follows, on the
    same machine just before, and none takes a large part of the time."""
    shop.stream("load/fast")
    shop.stream("load/other")
    tab = browser.tab(height=2000)
    tab.open(f"{console}#/streams/load%2Ffast")
    tab.until("document.querySelector('.live.on') !== null")
    tab.run(FRAMES)
    write_messages(shop, "load/other", 6_000)
    idle = tab.run("window.frames_")
    tab.run(FRAMES)
    write_messages(shop, "load/fast", 6_000)
    tab.sees("6,000 shown")
    tab.until(f"{ROWS}.at(-1)?.includes('\"n\":5999')", "the last message, in view")
    busy = tab.run("window.frames_")
    assert busy["count"] / busy["ms"] > idle["count"] / idle["ms"] / 5, (idle, busy)
    assert busy["longest"] < max(busy["ms"] / 3, 2 * idle["longest"]), (idle, busy)
    assert tab.run("document.querySelectorAll('.v-row').length") < 100
    assert tab.run(ALL_MESSAGES) == [[number, number] for number in range(6_000)]
    tab.run("document.querySelector('.v-list').scrollTop = 1e9")
    tab.fill(".bar input[type=search]", "n=4321")
    tab.sees("1 of 6,000 shown")
    tab.until(f"{ROWS}.length === 1 && {ROWS}[0].includes('4321')")
    tab.fill(".bar input[type=search]", "")
    tab.click("button", "Pause")
    shop.stream("load/fast", {"n": 6000})
    tab.sees("paused")
    tab.click("button", "Live")
    tab.until(f"{ROWS}.at(-1)?.includes('\"n\":6000')", "what was written while it was paused")
    tab.sees("6,001 shown")
    assert not tab.errors


def test_a_message_is_appended_and_shown(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(f"{console}#/streams/logs%2Fweb-1")
    tab.sees("8 shown")
    tab.click("button.primary", "Append")
    tab.fill("dialog textarea", "{not json")
    tab.click("dialog button.primary", "Append")
    tab.sees("This is not JSON")
    tab.fill("dialog textarea", '{"by": "hand"}')
    tab.click("dialog button.primary", "Append")
    tab.sees("9 shown")
    tab.click(".v-row", "hand")
    tab.until("document.querySelector('.detail pre').innerText.includes('hand')")
    for start, field, value, count in (
        ("time", "Time", "2020-01-01T00:00:00", 9), ("time", "Time", "2099-01-01T00:00:00", 0),
        ("offset", "Offset", "-1", 9),
    ):  # fmt: skip
        tab.fill("select[aria-label='Start at']", start)
        tab.fill(f"input[aria-label={field}]", value)
        tab.sees(f"{count} shown")
    assert not tab.errors


def test_a_list_without_messages_says_why(browser: Chromium, shop: Shop, console: str) -> None:
    shop.stream("quiet")
    shop.stream("ended", {"last": True})
    assert shop.http.post("/v1/stream/ended", headers={"stream-closed": "true"}).status_code == 204
    tab = browser.tab()
    tab.open(f"{console}#/streams/quiet")
    tab.sees("Waiting for messages")
    shop.stream("quiet", {"n": 1})
    tab.sees("1 shown")
    tab.fill(".bar input[type=search]", "n=2")
    tab.sees("Nothing matches the filter")
    tab.fill(".bar input[type=search]", "")
    tab.until("document.querySelector('.v-empty').hidden")
    tab.open(f"{console}#/streams/ended")
    tab.until("document.querySelector('.live')?.innerText === 'closed'")
    tab.sees("1 shown")
    buttons = tab.run("[...document.querySelectorAll('#main button:not([hidden])')].map(each => each.innerText)")
    assert "Live" not in buttons and "Append" not in buttons
    assert not tab.errors


def test_on_a_phone_a_message_is_shown_in_view(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab(width=390, height=700)
    tab.open(f"{console}#/streams/logs%2Fweb-0")
    tab.click(".v-row", "cart")
    box = tab.until("document.querySelector('.detail:not([hidden]) pre')?.getBoundingClientRect().toJSON()")
    bar = tab.run("document.querySelector('#nav').getBoundingClientRect().top")
    assert 0 < box["top"] < box["bottom"] <= bar, box
    assert not tab.errors


def test_changes_begin_with_the_latest(browser: Chromium, shop: Shop, console: str) -> None:
    """Also where what was written since is in other tables, which share the positions."""
    shop.sql("CREATE TABLE ticks (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = true)")
    shop.sql("CREATE TABLE other_ticks (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = true)")

    def write(table: str, count: int) -> None:
        for start in range(0, count, 50):
            numbers = range(start, start + 50)
            shop.sql(";".join(f"INSERT INTO {table} VALUES ('t-{number}', {number})" for number in numbers))

    write("ticks", 600)
    tab = browser.tab()
    tab.open(f"{console}#/tables/ticks?tab=changes")
    tab.until(f"{ROWS}.at(-1)?.includes('n=599')", "the last change, in view")
    shown = tab.run("document.querySelector('#main .bar').innerText")
    assert "600 shown" not in shown, shown
    write("other_ticks", 300)
    tab.open(f"{console}#/tables/ticks?tab=changes")
    tab.until(f"{ROWS}.at(-1)?.includes('n=599')", "the last change, in view")
    tab.fill("select[aria-label='Start at']", "-1")
    tab.until(f"{ROWS}[0]?.includes('n=0')", "the first change")
    for moment, first in (("2020-01-01T00:00:00", "n=0"), ("2099-01-01T00:00:00", "")):
        tab.fill("select[aria-label='Start at']", "time")
        tab.fill("input[aria-label=Time]", moment)
        tab.until(f"{ROWS}[0]?.includes('{first}')" if first else f"!{ROWS}.length", moment)
    shop.sql("DROP TABLE ticks; DROP TABLE other_ticks")
    assert not tab.errors


REPLACED = """
(async () => {
  const { VirtualList } = await import(`${location.origin}/console/ui.js`)
  const frame = () => new Promise((done) => requestAnimationFrame(done))
  const list = new VirtualList({ cells: (row) => [`${row}`], text: String, columns: "", label: "Rows" })
  document.getElementById("main").replaceChildren(list.element)
  const rows = Array.from({ length: 600 }, (_, row) => row)
  list.add(rows)
  for (let count = 0; count < 4; count++) await frame()
  const before = list.element.scrollTop
  list.clear()
  list.follow = false
  await frame() // it has been drawn, and the browser reports only in the next frame that the position has changed
  list.add(rows)
  list.top()
  for (let count = 0; count < 4; count++) await frame()
  return [before, list.element.scrollTop]
})()
"""


def test_a_list_that_is_replaced_stays_at_its_top(browser: Chromium, shop: Shop, console: str) -> None:
    """Rows may come before the browser reports that the shorter list scrolled: only the user's scrolling counts."""
    tab = browser.tab()
    tab.open(console)
    tab.sees("healthy")
    before, after = tab.run(REPLACED)
    assert before > 0
    assert after == 0


def test_what_is_read_on_comes_below_what_is_in_view(browser: Chromium, shop: Shop, console: str) -> None:
    shop.stream("load/pages")
    for start in (0, 60):  # a page has at most 4 MiB
        body = [{"n": number, "text": "x" * 60_000} for number in range(start, start + 60)]
        assert shop.http.post("/v1/stream/load/pages", json=body).status_code == 204
    tab = browser.tab()
    tab.open(f"{console}#/streams/load%2Fpages")
    tab.fill("select[aria-label='Start at']", "offset")
    tab.fill("input[aria-label=Offset]", "-1")
    tab.until(f"{ROWS}[0]?.startsWith('#1\\n')", "the first message")
    tab.run("document.querySelector('.v-list').scrollTop = 1e9")
    tab.until(f"!{ROWS}[0].startsWith('#1\\n')", "the end of the page")
    before = tab.run("document.querySelector('.v-list').scrollTop")
    tab.click("button", "Read on")
    tab.sees("120 shown")
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert tab.run("document.querySelector('.v-list').scrollTop") == before > 0
    assert not tab.errors


def test_a_restart_of_the_server_loses_and_doubles_no_message(browser: Chromium, data_dir: Path) -> None:
    server = ServerProcess.tailrace(data_dir).start()
    try:
        shop = Shop(server.url)
        shop.stream("notes", *({"n": number} for number in range(5)))
        tab = browser.tab()
        tab.open(f"{server.url}/console#/streams/notes")
        tab.sees("5 shown")
        server.kill()
        server = ServerProcess.tailrace(data_dir, port=server.port).start()
        shop.stream("notes", *({"n": number} for number in range(5, 10)))
        tab.sees("10 shown")
        found = tab.run(ROWS)
        assert [json.loads(row.split(None, 1)[1])["n"] for row in found] == list(range(10))
        shop.close()
        tab.close()
    finally:
        server.terminate()


def test_pages_recover_by_themselves_when_the_server_is_back(browser: Chromium, data_dir: Path) -> None:
    server = ServerProcess.tailrace(data_dir).start()
    try:
        shop = Shop(server.url)
        shop.sql("CREATE TABLE orders (id TEXT PRIMARY KEY) WITH (stream = true)")
        shop.stream("notes", *({"n": number} for number in range(3)))
        shop.close()
        notes = browser.tab()
        notes.open(f"{server.url}/console#/streams/notes")
        notes.sees("3 shown")
        tab = browser.tab()
        tab.open(f"{server.url}/console")
        tab.sees("healthy")
        tab.until("performance.getEntriesByType('resource').some(each => each.name.endsWith('/access.js'))")
        server.kill()
        tab.sees("The server cannot be reached.")
        notes.fill("select[aria-label='Start at']", "offset")
        notes.fill("input[aria-label=Offset]", "-1")
        notes.fill(".bar input[type=search]", '"n"')
        tab.run("location.hash = '#/tables'")
        tab.sees("This could not be loaded.")
        notes.sees("This could not be loaded.")
        notes.sees("The server cannot be reached.")
        server = ServerProcess.tailrace(data_dir, port=server.port).start()
        tab.until("document.querySelector('tbody a')?.innerText === 'orders'")
        tab.until("document.querySelector('.offline').hidden")
        notes.until(f"{ROWS}.length === 3", "the messages, from the offset that was asked for")
        assert notes.run("document.querySelector('input[aria-label=Offset]').value") == "-1"
        assert notes.run("document.querySelector('.bar input[type=search]').value") == '"n"'
        tab.close()
        notes.close()
    finally:
        server.terminate()


# -- items


def test_a_save_never_overwrites_a_change_of_others(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(item_address(console, "o-0011"))
    tab.click("button", "Edit")
    tab.until("document.querySelector('dialog textarea')?.value.includes('o-0011')")
    mine = json.loads(tab.run("document.querySelector('dialog textarea').value"))
    shop.sql("UPDATE orders SET status = 'stopped' WHERE id = 'o-0011'")
    tab.fill("dialog textarea", json.dumps({**mine, "total": 1, "status": "sent"}))
    tab.click("dialog button.primary", "Save")
    tab.sees("The item has changed meanwhile")
    tab.sees("Nothing was written")
    assert order(shop, "o-0011")["status"] == {"S": "stopped"}
    tab.click("dialog button", "Edit the present version")
    present = json.loads(tab.run("document.querySelector('dialog textarea').value"))
    assert present["status"] == "stopped"
    tab.fill("dialog textarea", json.dumps({**present, "total": 1, "note": "by hand"}))
    tab.click("dialog button.primary", "Save")
    tab.sees("Saved")
    assert order(shop, "o-0011")["status"] == {"S": "stopped"}
    assert order(shop, "o-0011")["total"] == {"N": "1"}
    tab.sees("by hand")


def order(shop: Shop, key: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = shop.dynamodb("GetItem", TableName="orders", Key={"id": {"S": key}})["Item"]
    return found


def test_values_keep_their_types(browser: Chromium, shop: Shop, console: str) -> None:
    exact = {
        "id": {"S": "o-types"},
        "tags": {"SS": ["a", "b"]},
        "big": {"N": "12345678901234567890123"},
        "raw": {"B": "AAEC"},
        "none": {"NULL": True},
    }
    shop.dynamodb("PutItem", TableName="orders", Item=exact)
    tab = browser.tab()
    tab.open(item_address(console, "o-types"))
    tab.click("button", "Edit")
    tab.until("document.querySelector('dialog textarea')?.value.includes('o-types')")
    text = tab.run("document.querySelector('dialog textarea').value")
    tab.fill("dialog textarea", text.replace('"none": null', '"none": null, "more": 1'))
    tab.click("dialog button.primary", "Save")
    tab.sees("Saved")
    assert order(shop, "o-types") == {**exact, "more": {"N": "1"}}


def test_an_item_with_many_attributes_is_edited_and_deleted(browser: Chromium, shop: Shop, console: str) -> None:
    """More of them than a condition expression may name."""
    wide = {f"attribute_{number:03}": {"S": str(number)} for number in range(400)}
    shop.dynamodb("PutItem", TableName="orders", Item={"id": {"S": "o-wide"}, **wide})
    tab = browser.tab()
    tab.open(item_address(console, "o-wide"))
    tab.click("button", "Edit")
    tab.until("document.querySelector('dialog textarea')?.value.includes('attribute_399')")
    text = tab.run("document.querySelector('dialog textarea').value")
    tab.fill("dialog textarea", text.replace('"attribute_007": "7"', '"attribute_007": "changed"'))
    tab.click("dialog button.primary", "Save")
    tab.sees("Saved")
    assert order(shop, "o-wide") == {"id": {"S": "o-wide"}, **wide, "attribute_007": {"S": "changed"}}
    tab.sees("2 versions")
    assert tab.run("document.querySelectorAll('.timeline > li:first-child .diff > div').length") == 2
    tab.click("button", "Delete")
    shop.dynamodb("PutItem", TableName="orders", Item={"id": {"S": "o-wide"}, "now": {"S": "this"}})
    tab.click("dialog button", "Delete")
    tab.sees("the item has changed meanwhile")
    assert order(shop, "o-wide") == {"id": {"S": "o-wide"}, "now": {"S": "this"}}
    tab.click("button", "Delete")
    tab.click("dialog button", "Delete")
    tab.sees("There is no item with this key now")
    assert not tab.errors


def test_the_history_of_an_item_and_an_older_version_restored(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(item_address(console, "o-0007"))
    tab.until("document.querySelectorAll('.timeline > li').length === 3")
    versions = tab.run("[...document.querySelectorAll('.timeline > li')].map(each => each.innerText)")
    assert [each.split()[0] for each in versions] == ["MODIFY", "MODIFY", "INSERT"]
    assert '"packed"' in versions[0]
    assert '"sent"' in versions[0]
    assert "everyone" in versions[0]
    assert "hot" in versions[0]
    tab.click(".timeline > li:last-child button", "Restore this version")
    tab.click("dialog button", "Restore")
    tab.until("document.querySelectorAll('.timeline > li').length === 4")
    assert order(shop, "o-0007")["status"] == {"S": "paid"}
    tab.click(".timeline > li:last-child a", "Table at this moment")
    tab.sees("The table after sequence")
    assert not tab.errors


def test_ten_thousand_items_are_scrolled_through(browser: Chromium, shop: Shop, console: str) -> None:
    """They are read on as the list is scrolled; the document has those in view alone, wherever that is."""
    shop.sql("CREATE TABLE many (id TEXT PRIMARY KEY, n BIGINT, note TEXT)")
    for start in range(0, 10_000, 1_000):
        rows = ", ".join(f"('i-{number:05}', {number}, 'note {number}')" for number in range(start, start + 1_000))
        shop.sql(f"INSERT INTO many VALUES {rows}")
    tab = browser.tab()
    tab.open(f"{console}#/tables/many")
    tab.sees("100 items, and more")
    largest = 0

    def scrolled(to: str) -> list[list[Any]]:
        """The rows in view after a scroll: their numbers, by their places, and their keys."""
        nonlocal largest
        found: dict[str, Any] = tab.run(
            f"(async () => {{ const grid = document.querySelector('.grid.long'); grid.scrollTop = {to};"
            "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
            "const frame = grid.getBoundingClientRect();"
            "const seen = [...grid.querySelectorAll('tbody tr:not(.filler)')].filter(row => {"
            "  const at = row.getBoundingClientRect(); return at.bottom > frame.top + 30 && at.top < frame.bottom });"
            "return { all: document.querySelectorAll('*').length,"
            "  rows: seen.map(row => [row.ariaRowIndex - 2, row.cells[0].innerText]) } })()"
        )
        largest = max(largest, found["all"])
        rows: list[list[Any]] = found["rows"]
        assert rows
        return rows

    status = "document.querySelector('.bar [role=status]').innerText"
    deadline = time.monotonic() + PATIENCE_S
    while tab.run(status) != "10,000 items":
        scrolled("grid.scrollHeight")
        assert time.monotonic() < deadline, tab.run(status)
    keys = scanned(shop, "many")
    assert len(set(keys)) == 10_000
    for to in ("grid.scrollHeight", "grid.scrollHeight / 2", "0"):
        for at, key in (rows := scrolled(to)):
            assert key == keys[at]
        assert len(rows) > 8
    assert scrolled("grid.scrollHeight")[-1][0] == 9_999
    assert scrolled("0")[0][0] == 0
    assert largest < 600, "elements in the document"
    tab.click(".grid.long a", keys[3])
    tab.sees(f"note {int(keys[3][2:])}")
    assert not tab.errors


def scanned(shop: Shop, table: str) -> list[str]:
    """The keys of all items, in the order of a scan."""
    keys: list[str] = []
    start: dict[str, Any] = {}
    while True:
        page = shop.dynamodb("Scan", TableName=table, **start)
        keys += [item["id"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            return keys
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def test_items_are_found_by_query_index_and_filter(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(f"{console}#/tables/orders")
    tab.sees("sku-")
    tab.click("button", "Add filter")
    tab.fill(".term input[placeholder=attribute]", "customer")
    tab.fill(".term input[aria-label='Value of the attribute']", "dan")
    tab.click("button.primary", "Run")
    tab.sees('filter customer = "dan"')
    tab.until(
        "(rows => rows.length >= 12 && rows.every(row => row.innerText.includes('dan')))"
        "([...document.querySelectorAll('tbody tr')])"
    )
    tab.fill(".term input[aria-label='Value of id']", "o-0003")
    tab.click("button.primary", "Run")
    tab.until("document.querySelectorAll('tbody tr').length === 1")
    tab.sees('Query id = "o-0003"')
    tab.open(f"{console}#/tables/customers")
    tab.fill("select[aria-label=Read]", "by_city")
    tab.fill(".term input[aria-label='Value of city']", "Basel")
    tab.click("button.primary", "Run")
    tab.sees('Query city = "Basel"')
    tab.until("[...document.querySelectorAll('tbody tr')].every(row => row.innerText.includes('Basel'))")
    assert not tab.errors


# -- topics


def test_a_write_is_followed_to_its_consumers(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(item_address(console, "o-0004"))
    tab.click(".timeline a", "Follow this write")
    for text in (
        "The change record",
        "shop.new_orders",
        "partition 0, offset 0",
        "mail",
        "acknowledged",
        "Cold storage",
    ):
        tab.sees(text)
    states = tab.run(
        "[...document.querySelectorAll('.timeline tbody tr')].map(row => row.innerText.split('\\t').slice(0, 2))"
    )
    assert ["mail", "acknowledged"] in states
    assert not tab.errors


def test_a_write_is_followed_to_views_and_to_its_file(browser: Chromium, data_dir: Path) -> None:
    """With everything that can come of it: who has consumed it when, the rows of a view, the file in cold storage."""
    sequence = followed_write(data_dir)
    with ServerProcess.tailrace(data_dir) as server:
        tab = browser.tab()
        tab.open(f"{server.url}/console#/follow?table=payments&sequence={sequence}")
        tab.sees("Rows of revenue that this write has moved")
        shown = tab.run("[...document.querySelectorAll('.timeline > li')].map(each => each.innerText)")
        messages, jobs, kept = shown[-3:]
        assert "ledger-1" in messages and "system" in messages and "acknowledged" in messages, messages
        assert "applied" in jobs and "MODIFY" in jobs and "paid" in jobs and '"S"' not in jobs, jobs
        assert "tables/payments" in kept and ".parquet" in kept, kept
        assert not tab.errors
        tab.close()


def test_a_group_is_reset_after_a_preview(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(f"{console}#/topics/shop.new_orders?tab=groups")
    tab.until("[...document.querySelectorAll('tbody tr')].some(row => row.innerText.includes('mail'))")
    tab.run(
        "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('mail'))"
        ".querySelector('button').click()"
    )
    tab.sees("20 acknowledged messages will be delivered again.")
    tab.fill("dialog select", "LATEST")
    tab.sees("messages will be skipped.")
    tab.fill("dialog select", "OFFSET")
    tab.fill("dialog input[name=offset]", "5")
    tab.sees("15 acknowledged messages will be delivered again.")
    tab.fill("dialog select", "TIMESTAMP")
    tab.fill("dialog input[name=time]", "2020-01-01T00:00:00")
    tab.sees("20 acknowledged messages will be delivered again.")
    tab.fill("dialog select", "OFFSET")
    tab.sees("15 acknowledged messages will be delivered again.")
    tab.sees("5 messages will be skipped.")  # of the partition that the group has not consumed from
    assert lag(shop, "mail") == 10  # nothing has moved yet
    tab.click("dialog button.primary", "Reset")
    tab.sees("mail was reset")
    assert lag(shop, "mail") == 25
    assert not tab.errors


def lag(shop: Shop, group: str) -> int:
    groups = shop.http.get("/v1/topics/shop.new_orders").json()["groups"]
    return sum(each["lag"] for each in groups if each["group_id"] == group and each["partition_id"] == 0)


def test_groups_show_their_lag_and_who_has_consumed(browser: Chromium, shop: Shop, console: str) -> None:
    topic = {"topic": "shop.large_orders", "group_id": "auditors", "partition_id": 0}
    taken = {**topic, "consumer_id": "desk-4", "limit": 3}
    (first, _, last) = shop.http.post("/v1/api/topics/consume", json=taken).json()["messages"]
    ack = {**topic, "consumer_id": "desk-4", "upto_offset": last["offset"]}
    assert shop.http.post("/v1/api/topics/ack", json=ack).status_code == 200
    assert shop.http.post("/v1/api/topics/consume", json={**taken, "limit": 2}).status_code == 200
    tab = browser.tab()
    tab.open(f"{console}#/topics/shop.large_orders?tab=groups")
    row = "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('auditors'))"
    tab.until(f"!!{row}")
    titles = tab.run("[...document.querySelectorAll('thead th')].map(each => each.innerText.toLowerCase())")
    cells = dict(zip(titles, tab.run(f"[...{row}.querySelectorAll('td')].map(each => each.innerText)"), strict=True))
    (group,) = [each for each in described(shop, "shop.large_orders") if each["group_id"] == "auditors"]
    assert (cells["lag"], cells["in flight"], cells["redelivered"]) == (str(group["lag"]), "2", "0")
    assert cells["behind"].split()[-1] in ("ms", "s", "min"), cells  # the age of the oldest message
    assert cells["consumers"] == "desk-4"
    assert tab.run(f"{row}.querySelector('svg[aria-label^=Lag]') !== null")
    listed = "/v1/topics/shop.large_orders/acknowledgements?group=auditors"
    tab.until(f"fetch('{listed}').then(each => each.json()).then(found => found.acknowledgements.length === 1)")
    tab.run(f"[...{row}.querySelectorAll('button')].at(-1).click()")
    tab.sees("Who has consumed as auditors")
    tab.until("document.querySelectorAll('dialog tbody tr').length === 1")
    shown = tab.run("document.querySelector('dialog tbody tr').innerText")
    assert "desk-4" in shown and "everyone" in shown and f"{first['offset']} to {last['offset']}" in shown
    assert not tab.errors


def described(shop: Shop, topic: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = shop.http.get(f"/v1/topics/{topic}").json()["groups"]
    return groups


# -- the pipeline


def test_jobs_are_paused_and_resumed(browser: Chromium, shop: Shop, console: str) -> None:
    def job() -> dict[str, Any]:
        found: dict[str, Any] = shop.http.get("/v1/jobs/tier").json()
        return found

    tab = browser.tab()
    tab.open(f"{console}#/pipeline")
    row = "[...document.querySelectorAll('tbody tr')].find(row => row.querySelector('b')?.innerText === 'tier')"
    tab.until(f"!!{row}?.querySelector('button')")
    assert tab.run(f"{row}.querySelector('button').innerText") == "Pause"
    tab.run(f"{row}.querySelector('button').click()")
    tab.until(f"{row}?.innerText.includes('pausing')")  # its program has not said yet that it holds the job
    assert job()["paused"] and job()["paused_by"] == "everyone"
    assert shop.http.post("/v1/jobs/tier/report", json={"state": "paused", "message": ""}).status_code == 200
    tab.run("location.reload()")
    tab.until(f"{row}?.innerText.includes('paused by everyone')")
    tab.run(f"{row}.querySelector('button').click()")
    tab.until(f"{row}?.querySelector('button')?.innerText === 'Pause'")
    assert not job()["paused"]
    assert shop.http.post("/v1/jobs/tier/report", json={"state": "running", "message": "63 entries of 1 log"})
    assert not tab.errors


def test_a_table_is_recovered(browser: Chromium, shop: Shop, console: str) -> None:
    tab = browser.tab()
    tab.open(f"{console}#/tables/customers?tab=settings")
    tab.sees("Point-in-time recovery")
    tab.sees("There are no backups of this table")
    tab.click("button", "Turn on")
    tab.sees("Earliest moment")
    tab.click("button", "Back up now")
    tab.fill("dialog input[name=name]", "before-the-sale")
    tab.click("dialog button.primary", "Back up")
    tab.sees("before-the-sale")
    tab.click("button", "Restore to a moment")
    tab.fill("dialog input[name=target]", "customers_then")
    tab.click("dialog button.primary", "Restore")
    tab.until("location.hash === '#/tables/customers_then'")
    ready = "found.tables.some(each => each.name === 'customers_then' && each.status === 'ACTIVE')"
    tab.until(f"fetch('/v1/tables').then(each => each.json()).then(found => {ready})")
    found = shop.dynamodb("Scan", TableName="customers_then")
    assert found["Count"] == 5
    shop.dynamodb("DeleteTable", TableName="customers_then")
    assert not tab.errors


def test_dead_letters_are_sent_again(browser: Chromium, shop: Shop, console: str) -> None:
    before = published(shop)
    tab = browser.tab()
    tab.open(f"{console}#/topics/shop.new_orders?tab=dead")
    tab.sees("5 shown")
    tab.click(".v-row", "o-0004")
    tab.sees("Failed in")
    tab.click(".detail button", "Send again")
    tab.sees("Sent again to shop.new_orders")
    assert published(shop) == before + 1
    tab.click("button", "Send all shown again")
    tab.click("dialog button", "Send again")
    tab.until("[...document.querySelectorAll('.toast')].some(each => each.innerText.trim() === 'Sent again')")
    assert published(shop) == before + 6
    assert not tab.errors


def published(shop: Shop) -> int:
    return sum(each["next_offset"] for each in shop.http.get("/v1/topics/shop.new_orders").json()["partition_list"])


# -- access


@pytest.fixture
def guarded(data_dir: Path) -> Iterator[ServerProcess]:
    """A server with a token and four users."""
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--data", str(data_dir), "--port", "0"]
    with ServerProcess(command, env={"TAILRACE_TOKEN": TOKEN}) as server:
        shop = Shop(server.url, {"authorization": f"Bearer {TOKEN}"})
        shop.sql(
            "CREATE TABLE orders (id TEXT PRIMARY KEY) WITH (stream = 'NEW_AND_OLD_IMAGES'); CREATE TOPIC app.news"
        )
        assert shop.http.put("/v1/jobs/nightly", json={"kind": "snapshot"}).status_code == 200
        users = [
            ("ann", "dba", None),
            ("bob", "user", None),
            ("cyd", "user", ["tables/orders"]),
            ("dan", "reader", None),
        ]
        for name, role, access in users:
            body = {"name": name, "role": role, "password": PASSWORD, "access": access}
            assert shop.http.post("/v1/admin/users", json=body).status_code == 201
        shop.close()
        yield server


def log_in(tab: Tab, name: str, password: str = PASSWORD) -> None:
    tab.fill("input[name=user]", name)
    tab.fill("input[name=password]", password)
    tab.click("button.primary", "Log in")


def test_a_login_and_what_each_role_is_offered(browser: Chromium, guarded: ServerProcess) -> None:
    console = f"{guarded.url}/console"
    assert httpx.get(console).status_code == 200  # the page is for everyone, the data is not
    tab = browser.tab()
    tab.open(console)
    log_in(tab, "ann", "wrong")
    tab.sees("The user or the password is wrong.")
    log_in(tab, "ann")
    tab.sees("healthy")
    tab.run("location.hash = '#/pipeline'")
    tab.until("document.querySelector('#main td button')?.innerText === 'Pause'")
    tab.run("location.hash = '#/access'")
    tab.sees("New user")
    tab.run("location.reload()")  # the session goes on
    tab.sees("New user")
    tab.click("button", "Log out")
    tab.sees("Log in")
    log_in(tab, "bob")
    tab.run("location.hash = '#/access'")
    tab.sees("Permissions")
    assert "New user" not in tab.run("document.body.innerText")
    tab.run("location.hash = '#/pipeline'")
    tab.until("document.querySelector('tbody')?.innerText.includes('nightly')")
    assert not tab.run("document.querySelectorAll('#main td button').length")  # they may not pause it
    tab.run("location.hash = '#/topics/app.news'")
    tab.until("[...document.querySelectorAll('.tabs a')].map(each => each.innerText).join() === 'Overview,Groups'")
    tab.click("button", "Log out")
    tab.sees("Log in")
    log_in(tab, "cyd")
    tab.sees("tables/orders")


def test_who_only_reads_is_offered_nothing_that_writes(browser: Chromium, guarded: ServerProcess) -> None:
    shop = Shop(guarded.url, {"authorization": f"Bearer {TOKEN}"})
    assert shop.http.put("/v1/stream/notes").status_code == 201
    shop.sql("INSERT INTO orders (id) VALUES ('o-1')")
    shop.close()
    writing = ("New stream", "Append", "New item", "Edit", "Delete", "Publish", "New topic", "Restore this version")
    for name, offered in (("dan", False), ("ann", True)):
        tab = browser.tab()
        tab.open(f"{guarded.url}/console")
        log_in(tab, name)
        tab.sees("Log out")
        seen: set[str] = set()
        for page, ready in (
            ("streams", "notes"), ("streams/notes", "application/octet-stream"), ("tables/orders", "o-1"),
            ("tables/orders/item?key=%7B%22id%22%3A%22o-1%22%7D", "Now"), ("topics", "app.news"),
            ("topics/app.news", "Groups"),
        ):  # fmt: skip
            tab.run(f"location.hash = '#/{page}'")
            tab.until(f"document.querySelector('#main')?.innerText.includes({ready!r})")
            seen |= set(tab.run("[...document.querySelectorAll('#main button')].map(each => each.innerText)"))
        assert ({"New stream", "Append", "New item", "Edit", "Publish"} <= seen) == offered, seen
        assert offered or not seen & set(writing), seen
        tab.click("button", "Log out")


def test_the_servers_token_is_a_login_too(browser: Chromium, guarded: ServerProcess) -> None:
    tab = browser.tab(width=390, dark=True)
    tab.open(f"{guarded.url}/")
    tab.click("summary", "Use a token instead")
    tab.fill("input[name=token]", "not the token at all")
    tab.click("button", "Use token")
    tab.sees("does not accept this token")
    tab.fill("input[name=token]", TOKEN)
    tab.click("button", "Use token")
    tab.sees("healthy")
    assert tab.run("document.documentElement.dataset.theme") == "dark"
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 28)"
