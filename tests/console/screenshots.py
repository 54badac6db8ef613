"""Takes the screenshots of the documentation: a seeded server, every page, light; some dark, and on a phone.

python -m tests.console.screenshots docs/assets/console
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.console.demo import Shop, followed_write
from tests.console.pages import PAGES
from tests.support.chromium import Chromium, Tab, chromium, executable
from tests.support.server import ServerProcess

SHOWN = ("streams", "stream", "forks", "stream-settings", "tables", "table", "empty-table", "past", "item", "topics",
         "topic", "dead-letters", "sql", "users", "keys", "audit")  # fmt: skip
DARK = ("item", "sql")
PHONE = ("overview", "table", "item")
BYTES_MAX = 150_000
WARM_UP_S = 40  # so that the charts have a history


def main() -> int:
    if executable() is None:
        print("Chromium is not installed; tools/ensure-chromium installs it where it can")
        return 69
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        sequence = followed_write(Path(directory) / "data")
        photograph(Path(directory), target, sequence)
    large = {path.name: path.stat().st_size for path in target.glob("*.png") if path.stat().st_size > BYTES_MAX}
    print(f"{len(list(target.glob('*.png')))} screenshots in {target}", large or "")
    return 1 if large else 0


def photograph(directory: Path, target: Path, sequence: int) -> None:
    """Start a server over the prepared database, fill it, and take every picture."""
    with ServerProcess.tailrace(directory / "data") as server:
        shop = Shop(server.url)
        shop.fill()
        recovery = {"PointInTimeRecoveryEnabled": True}
        shop.dynamodb("UpdateContinuousBackups", TableName="orders", PointInTimeRecoverySpecification=recovery)
        shop.dynamodb("CreateBackup", TableName="orders", BackupName="before-the-sale")
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(server.url, stop))
        writer.start()
        try:
            with chromium(directory) as browser:
                take(browser, f"{server.url}/console", target)
                take_pipeline(browser, f"{server.url}/console", target, shop, sequence)
        finally:
            stop.set()
            writer.join()
            shop.close()


def write(url: str, stop: threading.Event) -> None:
    """A shop that goes on, so that there is something to see."""
    shop = Shop(url)
    number = 1000
    while not stop.wait(0.05):
        shop.put_order(number)
        number += 1
        if number % 10 == 0:
            shop.consume(
                "shop.new_orders", "mail", 6 + number // 10 % 5, ack=True, consumer=f"mailer-{number // 10 % 3}"
            )
            shop.stream("logs/web-2", {"request": number, "status": 200})
    shop.close()


def take_pipeline(browser: Chromium, console: str, target: Path, shop: Shop, sequence: int) -> None:
    """The pages that show jobs, views and cold storage."""
    tab = browser.tab(width=1120, height=1180)
    tab.open(f"{console}#/follow?table=payments&sequence={sequence}")
    tab.sees("Rows of")
    save(tab, target / "follow.png")
    shop.http.post("/v1/jobs/revenue/pause")
    shop.http.post("/v1/jobs/revenue/report", json={"state": "paused"})
    for name, text in (("pipeline", "paused by"), ("views", "fresh"), ("cold", "tables/payments")):
        tab = browser.tab(width=1120, height=680)
        tab.open(console + PAGES[name][0])
        tab.sees(text)
        save(tab, target / f"{name}.png")
    opened(browser, console, "pipeline", target / "pipeline-phone.png", width=390)


def take(browser: Chromium, console: str, target: Path) -> None:
    for name in SHOWN:
        opened(browser, console, name, target / f"{name}.png")
    for name in DARK:
        opened(browser, console, name, target / f"{name}-dark.png", dark=True)
    reset = opened(browser, console, "groups")
    reset.click("td button", "Reset")
    reset.sees("delivered again")
    save(reset, target / "reset.png")
    who = opened(browser, console, "groups")
    save(who, target / "groups.png")
    who.click("td button", "Who")
    who.sees("The last acknowledgements")
    save(who, target / "who.png")
    messages = opened(browser, console, "messages")
    messages.click("button", "Pause")
    messages.click(".v-row", "customer")
    messages.sees("Payload")
    save(messages, target / "messages.png")
    changes = opened(browser, console, "changes")
    changes.fill("select[aria-label='Start at']", "-1")
    changes.fill(".bar input[type=search]", "o-000")
    changes.click(".v-row", 'status="packed"')
    changes.sees("Follow this write")
    save(changes, target / "changes.png")
    opened(browser, console, "table-settings", target / "table-settings.png", height=1000)
    palette = opened(browser, console, "tables")
    palette.press("k", control=True, code="KeyK")
    palette.fill("dialog input", "orders")
    palette.until("document.querySelectorAll('#found li').length > 2")
    save(palette, target / "palette.png")
    overview = opened(browser, console, "overview")
    time.sleep(WARM_UP_S)
    overview.fill("select", "900")
    save(overview, target / "overview.png")
    opened(browser, console, "overview", target / "overview-dark.png", dark=True)
    for name in PHONE:
        opened(browser, console, name, target / f"{name}-phone.png", width=390)


def opened(
    browser: Chromium,
    console: str,
    name: str,
    path: Path | None = None,
    *,
    width: int = 1120,
    height: int = 0,
    dark: bool = False,
) -> Tab:
    address, text = PAGES[name]
    tab = browser.tab(width=width, height=height or (680 if width > 600 else 760), dark=dark)
    tab.open(console + address)
    tab.sees(text)
    if path is not None:
        save(tab, path)
    return tab


def save(tab: Tab, path: Path) -> None:
    time.sleep(1)  # what still moves has arrived
    path.write_bytes(tab.screenshot())


if __name__ == "__main__":
    sys.exit(main())
