"""`make bench`: Tailrace beside others that do the same, in one run, as ratios.

    machine.py   what the run stands on: processor, disk, how much of a core others took
    servers.py   the servers as child processes, pinned to one core
    rows.py      what is measured of streams, one class per row
    editor.py    what is measured of collaborative editing
    growth.py    what becomes of it with more streams and more entries
    embedded.py  what is measured of tables from Python, beside the bare sqlite3 module
    tables.py    what is measured of tables over HTTP, beside other servers of the DynamoDB API
    dynamodb.py  requests of that API, and callers that look at every answer
    topics.py    what is measured of topics, beside Redis Streams and a queue in PostgreSQL
    queues.py    those servers, started and filled
    clients.py   one client of each of them
    workers.py   clients in processes of their own
    routes.py    what a route costs the write that it belongs to, and its filter alone
    pipeline/    what is measured of the pipeline, beside Spark's own Parquet reader
    live.py      live readers of streams
    load.py      requests, answers, one plain connection, a server as a child process
    generator.py the load generator; the work is done by generator.c where a C compiler is there
    report.py    the tables, the JSON and the section of docs/reference/benchmarks.md

`python -m bench.appends` runs the load generator alone against one server.
"""
