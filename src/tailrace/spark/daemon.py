"""The process that Spark forks Python workers from, on this machine: with all that they need imported.

Spark's own daemon imports nothing, and each worker that it forks imports Arrow, pandas, PySpark and this package again:
more than a second of processor time for each, and a job has several workers for each core. Spark does so because
importing them starts threads, which do not survive a fork. Here their settings prevent that. If there is
another thread all the same, such as one that a later version starts, Spark's own daemon takes over.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

MODULES: Final = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "pandas",
    "httpx",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "tailrace.spark.source",
    "tailrace.spark.views.encoding",
    "tailrace.spark.views.partials",
    "tailrace.spark.jobs.copies",
)
# OpenBLAS would start a thread for each core, and Arrow's allocator one that returns memory.
_NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def main() -> None:
    before = dict(os.environ)
    load()
    if threads() != 1:
        os.execve(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]], before)
    gc.collect()
    gc.freeze()  # or the first collection of a worker would copy every page
    from pyspark.daemon import manager

    manager()


def load() -> None:
    """Import what workers need, without starting a thread."""
    os.environ.update(_NO_THREADS)
    for name in MODULES:
        with suppress(ImportError):  # a worker that needs it reports the error
            importlib.import_module(name)


def threads() -> int:
    """The number of threads of this process, also of those that Python does not know."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


if __name__ == "__main__":
    main()
