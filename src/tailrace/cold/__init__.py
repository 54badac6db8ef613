"""Cold storage: where history lives that is no longer in the database, as Delta tables under one URL.

    schemas     what the rows of each kind look like, and where they lie
    store       the URL: a directory or a bucket, opened one way
    writing     rows to Parquet files, files to a commit; once each
    reading     the rows of a log again, in order, and proof that none is missing
    shelf       entries read lately, for readers that may not wait
    compacting  many small files into few large ones; retention; what nobody lists is removed

The tables are in an open format. Whatever reads Delta or Parquet reads them without us.
"""
