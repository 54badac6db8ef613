"""The parts of a server that handlers use: one object, passed to every handler that needs more than a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.config import Config
from tailrace.database import Database
from tailrace.http.authentication import Authenticator
from tailrace.http.bulk import ArrowLoader
from tailrace.http.cluster import ClusterView
from tailrace.http.consumers import ConsumerQueues
from tailrace.http.dynamodb.handler import DynamoHandler
from tailrace.http.dynamodb.offload import OffloadPool
from tailrace.http.live import LiveReads
from tailrace.http.readiness import ReadCheck
from tailrace.http.reading import Reading
from tailrace.http.revocation import CallerRegistry
from tailrace.http.samples import Samples
from tailrace.http.signature import Signatures
from tailrace.http.sql import SqlHandler


class Services:
    """Everything that handlers share; `close` ends its threads."""

    def __init__(self, db: Database, config: Config) -> None:
        self.db = db
        self.config = config
        self.connections: Callable[[], int | None] = lambda: None  # how many are open; set by a server of our own
        self.cluster: ClusterView | None = None  # of which this server is one
        self.read_check = ReadCheck(db)
        self.samples = Samples(db, config.data, lambda: self.connections())
        self.live = LiveReads(db.tail, db.clock, db.metrics, recycle_s=config.sse_recycle_s)
        self.authenticator = Authenticator(db, config)
        self.callers = CallerRegistry(db, self.authenticator)
        self.reading = Reading(
            self.live,
            db.clock,
            self.callers.of,
            page_bytes=config.page_bytes,
            long_poll_timeout_s=config.long_poll_timeout_s,
            # A response that needed credentials must not be kept by a cache that others read.
            cache_scope="public" if config.dev else "private",
        )
        self.consumers = ConsumerQueues(db)
        self.arrow = ArrowLoader(db)
        self.change_workers = OffloadPool()
        self.stage_workers = OffloadPool()
        self.transaction_workers = OffloadPool()
        self.sql = SqlHandler(db)
        self.signatures = Signatures(db, self.authenticator, dev=config.dev)
        self.dynamodb = DynamoHandler(db, config, self.signatures.claimed)

    def release(self) -> None:
        """End live reads, so that their connections can end."""
        self.live.stop()
        self.consumers.release()

    async def close(self) -> None:
        """Stop following changes, and end the threads; work that is under way there is finished."""
        self.signatures.close()
        self.callers.close()
        await self.samples.stop()
        await self.authenticator.close()
        pools = self.change_workers, self.stage_workers, self.transaction_workers
        for part in (self.read_check, self.dynamodb, self.arrow, *pools, self.sql):
            await asyncio.to_thread(part.close)
