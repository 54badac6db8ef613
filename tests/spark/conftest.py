"""One Spark session and one server process for all tests of Spark: each takes seconds to start.

Tests that need a database of their own have a server in a thread (`served`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.client import Client
from tests.support.jvm import SHORT_LIVED
from tests.support.server import ServerProcess, check
from tests.unit.threaded import Served

pytest.importorskip("pyspark")
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)
TIMEOUT_S = 1200  # of a test here, unless it says otherwise: whichever comes first waits for Spark and the server too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session. Nobody stops it but this fixture."""
    from tailrace.spark import session

    started = session(
        "tests",
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            # For a few rows, generating and compiling code takes longer than running the query.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
            # On a busy machine a Python worker may need more than the usual 15 s to connect back.
            "spark.python.authenticate.socketTimeout": "180s",
            "spark.python.worker.reuse": "true",
            "spark.executor.heartbeatInterval": "60s",
            "spark.network.timeout": "600s",
        },
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server. It must end in order and leave a sound database."""
    data = tmp_path_factory.mktemp("spark") / "data"
    process = ServerProcess.tailrace(data).start()
    try:
        yield process
    finally:
        status = process.terminate()
    assert status == 0, f"the server ended with {status}:\n{process.output}"
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with a database of the test's own, in this process."""
    with Served(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as found:
        yield found


@pytest.fixture
def name() -> str:
    """A name that no other test has, for a table, topic or stream."""
    return f"test{next(_numbers)}"


@pytest.fixture
def table(client: Client, name: str) -> str:
    """A table with the key `id` and a change stream."""
    create_table(client, name)
    return name


def create_table(client: Client, name: str) -> None:
    client.call(
        "CreateTable",
        {
            "TableName": name,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
            "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        },
    )


@pytest.fixture
def put(client: Client, table: str) -> Callable[..., None]:
    """Puts items n of the table."""

    def write(*numbers: int, **attributes: Any) -> None:
        for number in numbers:
            item = {"id": {"S": f"k{number}"}, "n": {"N": str(number)}, **attributes}
            client.call("PutItem", {"TableName": table, "Item": item})

    return write


@pytest.fixture
def load(spark: SparkSession, server: ServerProcess) -> Callable[..., DataFrame]:
    """A batch frame of the source with these options."""

    def read(schema: Any = None, **options: Any) -> DataFrame:
        reader = spark.read.format("tailrace").options(url=server.url, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def follow(spark: SparkSession, server: ServerProcess) -> Callable[..., DataFrame]:
    """A streaming frame of the source with these options."""

    def read(schema: Any = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format("tailrace").options(url=server.url, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path) -> Callable[..., Any]:
    """Runs a streaming frame into the sink until all that is there now was read; the query."""

    def finish(frame: DataFrame, checkpoint: str = "checkpoint", **options: Any) -> Any:
        writer = frame.writeStream.format("tailrace").options(url=server.url, **options)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return finish
