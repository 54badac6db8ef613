"""Fail in every way for an hour, and judge what the clients saw.

    python -m tests.faults [--minutes 60] [--faults 500] [--seed N]

It ends when that many faults were inflicted, or when the time is over. The exit status is 0 if there was no violation,
and `tailrace check` has found the database clean.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.faults import Fault
from tests.faults.run import Run
from tests.support import postgres


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", default="", help="faults whose names have this text")
    options = parser.parse_args()
    if postgres.programs() is None:
        print(postgres.NOT_TESTED)
        return 1
    directory = Path(tempfile.mkdtemp(prefix="tailrace-faults-data-"))
    print(f"seed {options.seed}, in {directory}", flush=True)
    began_s = time.monotonic()
    run = Run(directory, options.seed, lambda line: print(line, flush=True))
    try:
        possible = [fault for fault in run.possible() if options.only in fault.name]
        run.start()
        until_s = began_s + options.minutes * 60
        for fault in chosen(run, possible, options.faults):
            if time.monotonic() > until_s:
                break
            run.inflict(fault)
        problems = run.finish()
    except BaseException:
        print(run.report(), flush=True)
        for server in run.cluster.servers:
            print(f"-- server {server.number}:\n{server.process.output[-3000:]}", flush=True)
        raise
    finally:
        run.close()
    print(run.report())
    print(f"in {(time.monotonic() - began_s) / 60:.1f} minutes")
    if not problems:
        shutil.rmtree(directory, ignore_errors=True)
    if (done := sum(run.done.values())) < options.faults:
        print(f"the time was too short: {done} of {options.faults} faults; give it more with --minutes")
        return 1
    return 1 if problems else 0


def chosen(run: Run, possible: list[Fault], count: int) -> list[Fault]:
    """Each possible one at least once, then by weight."""
    once = run.chance.sample(possible, len(possible))
    more = run.chance.choices(possible, [fault.weight for fault in possible], k=max(0, count - len(once)))
    return [*once, *more][:count]


if __name__ == "__main__":
    sys.exit(main())
