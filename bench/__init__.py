"""`make bench`: Tailrace beside the published reference server, in one run, as ratios.

    machine.py   what the run stands on: processor, disk, how much of a core others took
    servers.py   the two servers as child processes, pinned to one core
    rows.py      what is measured, one class per row
    report.py    the table, the JSON and the section of docs/reference/benchmarks.md

The load generator is `tailrace.cli.load`, the same that `tailrace bench` uses.
"""
