"""An ordinary request under way: its command is queued, and its result becomes the response without a coroutine.

A transport calls a handler with a request and gets `Work`: the answer, if there is one at once; a `Submitted`, which
calls back; or a coroutine, for requests that wait for something else. `settled` awaits any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from tailrace.command import Command
from tailrace.completion import Completion
from tailrace.errors import Error
from tailrace.http import errors
from tailrace.http.message import Answer, Headers, LiveResponse, Request, Response
from tailrace.http.route import Route
from tailrace.metrics import Metrics
from tailrace.runner import QueuedCommand


class Submitted(QueuedCommand):
    """A queued command, whose result becomes the response. It has one waiter."""

    __slots__ = ("waiter",)

    def __init__(self, command: Command[Any], by: str) -> None:
        QueuedCommand.__init__(self, command, by)  # super() would take longer than the rest
        self.waiter: Callable[[], object] | None = None  # called when it is finished

    def deliver(self) -> None:
        self.finished = True
        if self.waiter is not None:
            self.waiter()

    def response(self) -> Response | Coroutine[Any, Any, Answer]:
        """The response, or a coroutine that makes it; call it when the command is finished."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Return when the command is finished."""
        if not self.finished:
            completion: Completion[None] = Completion()
            self.waiter = lambda: completion.set(None)
            await completion

    def __await__(self) -> Generator[Any, None, Answer]:
        yield from self.wait().__await__()
        response = self.response()
        return response if isinstance(response, Response) else (yield from response.__await__())


class RouteSubmitted(Submitted):
    """A submitted command with the route whose functions render its result."""

    __slots__ = ("_cors", "_metrics", "_request", "_route")

    def __init__(
        self, command: Command[Any], by: str, route: Route, request: Request, metrics: Metrics, cors: Headers | None
    ) -> None:
        Submitted.__init__(self, command, by)
        self._route = route
        self._request = request
        self._metrics = metrics
        self._cors = cors

    def response(self) -> Response:
        return response_of(self._route, self._request, self.result, self.error, self._metrics, self._cors)


def response_of(
    route: Route, request: Request, result: Any, error: BaseException | None, metrics: Metrics, cors: Headers | None
) -> Response:
    """The response of a route to the outcome of its command or query, which is counted."""
    if isinstance(error, Error):  # not raised: commands of a batch may share it, and it would keep their requests
        response = errors.response(error)
    elif error is not None:
        raise error
    else:
        try:
            response = rendered(route, request, result, metrics)
        except Error as refused:
            response = errors.response(refused)
    if cors:
        response.headers = [*response.headers, *cors]
    return response


def rendered(route: Route, request: Request, result: Any, metrics: Metrics) -> Response:
    """The response of a route to the result of its command, which is counted."""
    if route.count is not None:
        route.count(metrics, result)
    response: Response = route.render(request, result)  # type: ignore[misc]
    return response


Work = Response | LiveResponse | Submitted | Coroutine[Any, Any, Answer]
Handler = Callable[[Request], Work]


async def settled(work: Work) -> Answer:
    """The answer, when it is there."""
    return work if isinstance(work, Response | LiveResponse) else await work
