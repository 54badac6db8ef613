"""All operations, by their X-Amz-Target."""

from __future__ import annotations

from typing import Final

from tailrace.http.dynamodb import (
    backups,
    batches,
    integrations,
    items,
    policies,
    search,
    statements,
    streams,
    tables,
    transactions,
    transfers,
)
from tailrace.http.dynamodb.shape import Operation

TABLES: Final = "DynamoDB_20120810."
STREAMS: Final = "DynamoDBStreams_20120810."

_TABLES: Final = (
    tables.OPERATIONS
    | backups.OPERATIONS
    | integrations.OPERATIONS
    | items.OPERATIONS
    | policies.OPERATIONS
    | batches.OPERATIONS
    | search.OPERATIONS
    | transactions.OPERATIONS
    | statements.OPERATIONS
    | transfers.OPERATIONS
)
OPERATIONS: Final[dict[str, Operation]] = {
    **{TABLES + name: operation for name, operation in _TABLES.items()},
    **{STREAMS + name: operation for name, operation in streams.OPERATIONS.items()},
}
