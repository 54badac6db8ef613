"""The route table without a transport: requests of any principal, from anywhere."""

from __future__ import annotations

from typing import Any

from tailrace.access import SYSTEM, Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.http.app import App
from tailrace.http.message import Request, Response
from tailrace.http.submitted import settled


class Dispatching:
    """An app whose requests are all authenticated as the principal of the call."""

    def __init__(self, db: Database, config: Config | None = None) -> None:
        self.app = App(db, config or Config(dev=True))
        self.app._origins.check = lambda request: None  # type: ignore[method-assign]

    async def ask(self, request: Request, principal: Principal = SYSTEM) -> Response:
        def known(_: Any) -> Principal:
            return principal

        self.app._known = known
        answer = await settled(self.app(request))
        assert isinstance(answer, Response)
        return answer

    async def close(self) -> None:
        await self.app.services.close()
