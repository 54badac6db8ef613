"""The pipeline on Spark: its source beside Spark's own Parquet reader, its jobs, its sink.

orders.py   the history that is read, and what must come of it
plant.py    what the rows share: the history, loaded once, its server, Spark
worker.py   a Spark session in a process of its own
reader.py   a bulk read in a process of its own
rows.py     what is measured
"""
