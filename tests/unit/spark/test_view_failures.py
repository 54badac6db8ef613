"""What a view's job does when Spark fails."""

from __future__ import annotations

import pytest

from tailrace.errors import Error, Unavailable
from tailrace.spark.jobs.view import _ViewJob

LOST = (
    "Exception thrown in awaitResult: \n\tat a.b.C\nCaused by: SparkException: [X] Checkpoint block rdd_18_0 not found!"
)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        (LOST, True),  # an executor with a part of the state was killed; the cause is in Spark's text alone
        ("Checkpoint block rdd_18_0 not found!", True),
        ("Exception thrown in awaitResult: \n\tat a.b.C\nCaused by: java.lang.OutOfMemoryError", False),
    ],
)
def test_a_lost_executor_is_no_error_of_the_query(text: str, again: bool) -> None:
    found = _ViewJob._of_spark(None, RuntimeError(text))  # type: ignore[arg-type]
    assert isinstance(found, Error)
    assert isinstance(found, Unavailable) == again
