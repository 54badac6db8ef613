"""The jobs of the pipeline: each a function in a module of its name, which takes a Spark session and the server's URL.

    tier        follows logs into cold storage
    compact     merges small files there, and forgets what is past its retention
    snapshot    folds changes to the state of a table
    restore     rebuilds a table as of a moment
    view        keeps a materialized view
    replicate   keeps a copy of a table elsewhere
    audit       answers who changed what, when
    run         all of a pipeline.toml in one Spark application

What a job has done is known by the server, so any of them may be stopped at any moment, started again, or run twice.
Nothing is imported here: who wants one job does not wait for the others.
"""
