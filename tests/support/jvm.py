"""How JVMs of tests are started: one that lives for seconds spends more on compiling its code than on running it."""

from __future__ import annotations

from pathlib import Path

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_environment(folder: Path) -> dict[str, str]:
    """Variables that let every JVM of a Spark be short-lived, whoever starts it. Their files go to `folder`."""
    folder.mkdir(exist_ok=True)
    defaults = [f"spark.{process}.defaultJavaOptions {SHORT_LIVED}\n" for process in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("".join(defaults))
    return {"SPARK_CONF_DIR": str(folder), "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
