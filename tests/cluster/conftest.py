"""One cluster for all tests here. They are `make cluster-test`, and no part of `make test`: they take minutes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from tests.support.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Spark standalone master and two workers."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
