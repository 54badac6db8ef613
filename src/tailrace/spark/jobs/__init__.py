"""The jobs of the pipeline: each a function in a module of its name, which takes a Spark session and the server's URL.

    tier        copies logs to cold storage
    compact     merges small files there, and removes history past its retention
    snapshot    folds changes to the state of a table
    restore     rebuilds a table as of a moment
    view        maintains a materialized view
    replicate   maintains a copy of a table elsewhere
    audit       lists who changed what, when
    run         all jobs of a pipeline.toml in one Spark application

The server stores the progress of each job, so a job may be stopped at any moment, restarted, or run twice at once.
Nothing is imported here: importing one job does not load the others.
"""
