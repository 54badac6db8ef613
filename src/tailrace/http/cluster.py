"""The servers of a cluster, over HTTP: who leads, who follows and how far behind; and handing over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from tailrace.access import Permission, Principal
from tailrace.errors import Invalid
from tailrace.http.codec import json_response
from tailrace.http.message import Request, Response, origin

if TYPE_CHECKING:
    from tailrace.http.services import Services


class ClusterServerResponse(msgspec.Struct):
    name: str
    url: str
    role: Literal["leader", "follower"]
    lag_s: float | None  # how far behind the leader's commits it was at its last message; None: unknown
    seen_s: float  # since then


class ClusterResponse(msgspec.Struct):
    epoch: int  # grows with each take-over; 0 outside of a cluster
    batch: int  # the number of the last commit in it
    leading: bool  # whether this server knows a leader
    leader: str | None  # its URL
    server: str  # the URL of the server that answers
    servers: list[ClusterServerResponse]


class ClusterView(Protocol):
    """A server of a cluster, as handlers see it."""

    async def status(self) -> ClusterResponse: ...

    async def step_down(self) -> ClusterResponse: ...


async def get_cluster(services: Services, request: Request, principal: Principal) -> Response:
    """The servers, for everybody who may read something: bulk reads are spread over them. It names no objects."""
    if Permission.READ not in principal.permissions:
        raise principal.refusal(Permission.READ, "list the servers")
    if services.cluster is not None:
        return json_response(await services.cluster.status())
    url = origin(request, services.config)
    return json_response(ClusterResponse(0, 0, True, url, url, [ClusterServerResponse(url, url, "leader", 0.0, 0.0)]))


async def step_down(services: Services, request: Request, principal: Principal) -> Response:
    """Let another server lead."""
    if Permission.ADMIN not in principal.permissions or principal.access is not None:
        raise principal.refusal(Permission.ADMIN, "let another server lead")
    if services.cluster is None:
        raise Invalid("this server is not one of a cluster; there is no other that could lead", code="NOT_CLUSTER")
    return json_response(await services.cluster.step_down())
