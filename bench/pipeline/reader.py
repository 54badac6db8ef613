"""A bulk read that goes on and on, in a process of its own: `python -m bench.pipeline.reader URL ROWS`.

It reads the whole change stream as Arrow, in the form that Spark's executors ask for, and does nothing with it but
count. It ends when its standard input does, and then says what it has read as a line of JSON.
"""

from __future__ import annotations

import sys
import threading
import time

import msgspec

from bench.pipeline.orders import TABLE
from tailrace.client import Client


def wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main() -> None:
    url, expected = sys.argv[1], int(sys.argv[2])
    ended = threading.Event()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    rows, passes, wrong = 0, 0, 0
    began = time.perf_counter()
    with Client(url) as client:
        print("{}", flush=True)
        while not ended.is_set():
            seen = 0
            with client.arrow(table=TABLE, form="entries") as batches:
                for batch in batches:
                    seen += batch.num_rows
                    if ended.is_set():
                        break
                else:
                    passes += 1
                    wrong += seen != expected
            rows += seen
    done = {"rows": rows, "passes": passes, "wrong": wrong, "seconds": time.perf_counter() - began}
    print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
