"""A Spark session with the format "tailrace": on this machine with settings for a local run, or on a cluster.

With an existing session, only `register` is needed.
"""

from __future__ import annotations

import os
import re
import site
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tailrace
from tailrace.errors import Unavailable
from tailrace.spark import catalog, java
from tailrace.spark.catalog import DATABASE, SETTING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first has admission control and AvailableNow for Python sources; the last is the newest tested version.
PYSPARK_VERSIONS = ((4, 2), (4, 3))
_PACKAGE = Path(tailrace.__file__).parent
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JVM = "spark.driver.extraJavaOptions"
_GIB = 1 << 30
_HEAP_BYTES_MAX = 4 * _GIB

# Settings that the source needs on any cluster.
NEEDED = {"spark.sql.python.filterPushdown.enabled": "true"}
# Variables that Spark adds to the environment of a source when a query starts.
_ADDED = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "180",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
_CORES = "TAILRACE_SPARK_CORES"  # in the environment of the processes that plan
PATIENCE = {"spark.python.authenticate.socketTimeout": "180s"}  # a busy machine starts a Python worker slowly


def session(
    app: str = "tailrace",
    master: str | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    ship: bool = False,
    **conf: Any,
) -> SparkSession:
    """The active Spark session, or a new one on this machine or on `master`, with the format "tailrace" in it, and with
    the tables, topics and streams of the server at `url` in SQL (`tailrace.orders`, `tailrace.orders.changes`).

    `conf` holds Spark's settings (`**{"spark.executor.memory": "4g"}`), which override ours. With `ship`, this package
    is sent to the executors of a cluster; its dependencies must be installed there.
    """
    spark_session = _pyspark()
    active = spark_session.getActiveSession()
    if active is not None:
        return register(active, url=url, token=token)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM, with settings of its own
    builder = spark_session.builder.appName(app)
    settings: dict[str, Any] = NEEDED | PATIENCE | {SETTING: DATABASE}
    if not submitted:
        java.provide()
        _let_workers_import()
        master = master or os.environ.get("MASTER") or "local[*]"
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= local(master)
    if _JVM in settings and _JVM in conf:
        conf[_JVM] = f"{settings[_JVM]} {conf[_JVM]}"
    for name, value in (settings | conf).items():
        builder = builder.config(name, text(value))
    spark = builder.getOrCreate()
    if ship:
        spark.sparkContext.addPyFile(str(packed(Path(tempfile.mkdtemp(prefix="tailrace-")))))
    return register(spark, url=url, token=token)


def register(spark: SparkSession, *, url: str | None = None, token: str | None = None) -> SparkSession:
    """Register the format "tailrace" in `spark`, and the names of a server in SQL if the session was created with
    `spark.sql.globalTempDatabase` set to `tailrace`; the session. `Unavailable` if the version of PySpark, or of the
    cluster, is not supported."""
    _pyspark()
    check_version("Spark", spark.version)  # of a cluster that is reached by Spark Connect, not the one installed here
    from tailrace.spark.source import TailraceSource

    for name, value in NEEDED.items():
        spark.conf.set(name, value)
    if url is None:  # it stays what it was
        known = catalog.named_server(spark)
        url, token = known.get("url"), token or known.get("token")
    given = {"TAILRACE_URL": url, "TAILRACE_TOKEN": token}
    with _environment(spark, {name: value for name, value in given.items() if value is not None}):
        spark.dataSource.register(TailraceSource)
    catalog.install(spark, url, token)
    return spark


@contextmanager
def _environment(spark: SparkSession, more: dict[str, str]) -> Iterator[None]:
    """Sources that are registered meanwhile have `_ADDED` from the start, and `more`. All queries of a format share its
    environment, and the first streaming query adds to it while another may be sending it to executors, which then
    cannot read it."""
    context = getattr(spark, "_sc", None)
    if context is None:  # of Spark Connect, which has no processes here
        yield
        return
    before = dict(context.environment)
    context.environment.update({name: value for name, value in _ADDED.items() if name not in before})
    context.environment |= {**more, _CORES: str(_cluster_cores(spark))}
    try:
        yield
    finally:
        context.environment.clear()
        context.environment.update(before)


def local(master: str) -> dict[str, str]:
    """The settings for a run on one machine."""
    cores = _cores(master)
    # Workers are forked from a process that has imported what they need (`daemon.py`).
    forked = {"spark.python.daemon.module": "tailrace.spark.daemon"} if sys.platform == "linux" else {}
    return forked | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{_heap_bytes() >> 20}m",
        _JVM: f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.default.parallelism": str(cores),
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",  # two sessions would compete for its port
        "spark.ui.showConsoleProgress": "false",
    }


def packed(folder: Path) -> Path:
    """This package as a zip file in `folder`, to be sent to executors."""
    target = folder / "tailrace.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(_PACKAGE.parent))
    return target


def _pyspark() -> type[SparkSession]:
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError:
        raise Unavailable(
            "Spark is not installed; pip install 'tailrace[spark]', or make setup-spark in a checkout", code="NO_SPARK"
        ) from None
    check_version("PySpark", pyspark.__version__)
    return SparkSession


def check_version(what: str, version: str) -> None:
    """Raise unless the version of Spark is supported."""
    parts = re.match(r"(\d+)\.(\d+)", version)
    found = (int(parts[1]), int(parts[2])) if parts else None
    if found not in PYSPARK_VERSIONS:
        wanted = " and ".join(f"{major}.{minor}" for major, minor in PYSPARK_VERSIONS)
        raise Unavailable(
            f"{what} {version} is not supported, only {wanted}; pip install 'tailrace[spark]' installs a supported "
            "PySpark, and the cluster must have the same version",
            code="NO_SPARK",
        )


def _let_workers_import() -> None:
    """Add this package to the path of Python workers, if it is not installed."""
    home = str(_PACKAGE.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home not in paths and home not in (*site.getsitepackages(), site.getusersitepackages()):
        os.environ["PYTHONPATH"] = os.pathsep.join([home, *filter(None, paths)])


def _cores(master: str) -> int:
    """How many tasks run at once: of `local[4]` four, of `local[*]` as many as there are cores."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    if inside == "*":
        return available_cores()
    return int(inside) if inside.isdigit() and int(inside) > 0 else 1


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def planning_cores() -> int:
    """The number of cores of the cluster, as it was known when the format was registered; else of this machine."""
    known = os.environ.get(_CORES, "")
    return int(known) if known.isdigit() and int(known) else available_cores()


def _cluster_cores(spark: SparkSession) -> int:
    """The cores that tasks run on: those that are there, or those that were asked for and are still to come."""
    context = spark.sparkContext
    conf = context.getConf()
    each = int(conf.get("spark.executor.cores") or 1)
    asked = max(int(conf.get("spark.cores.max") or 0), int(conf.get("spark.executor.instances") or 0) * each)
    return max(context.defaultParallelism, asked)


def _heap_bytes() -> int:
    """Half of the memory, within reason. The JVM takes it as it needs it."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _GIB
    return max(_GIB, min(_HEAP_BYTES_MAX, memory // 2))


def text(value: Any) -> str:
    """A setting as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
