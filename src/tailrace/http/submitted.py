"""An ordinary request under way: its command is submitted, and its result becomes the response without a coroutine.

A transport calls a handler with a request and gets `Work`: the answer, if there is one at once; a `Submitted`, whose
completion calls back; or a coroutine, for requests that wait for something else. `settled` awaits any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from tailrace.completion import Completion
from tailrace.errors import Error
from tailrace.http import errors
from tailrace.http.message import Answer, Headers, LiveResponse, Request, Response
from tailrace.http.route import Route
from tailrace.metrics import Metrics


class Submitted:
    """A submitted command, and the route whose functions render its result."""

    __slots__ = ("completion", "cors", "metrics", "request", "route")

    def __init__(
        self, route: Route, request: Request, completion: Completion[Any], metrics: Metrics, cors: Headers | None
    ) -> None:
        self.route = route
        self.request = request
        self.completion = completion
        self.metrics = metrics
        self.cors = cors

    def response(self) -> Response:
        """The response; call it when the completion is set."""
        route = self.route
        try:
            result = self.completion.result()
            if route.count is not None:
                route.count(self.metrics, result)
            response: Response = route.render(self.request, result)  # type: ignore[misc]
        except Error as error:
            response = errors.response(error)
        if self.cors:
            response.headers = [*response.headers, *self.cors]
        return response

    def __await__(self) -> Generator[Any, None, Response]:
        with suppress(Error):
            yield from self.completion.__await__()
        return self.response()


def rendered(route: Route, request: Request, result: Any, metrics: Metrics) -> Response:
    """The response of a route to the result of its command, which is counted."""
    if route.count is not None:
        route.count(metrics, result)
    assert route.render is not None
    response: Response = route.render(request, result)
    return response


Work = Response | LiveResponse | Submitted | Coroutine[Any, Any, Answer]
Handler = Callable[[Request], Work]


async def settled(work: Work) -> Answer:
    """The answer, when it is there."""
    return work if isinstance(work, Response | LiveResponse) else await work
