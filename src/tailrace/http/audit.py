"""The last lines of the audit log, for administrators. The server's log has all of them (`tailrace.audit`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.access import Permission, Principal
from tailrace.auth import audit
from tailrace.errors import Forbidden
from tailrace.http.codec import json_response, rfc3339
from tailrace.http.message import Request, Response

if TYPE_CHECKING:
    from tailrace.http.services import Services


class AuditLineResponse(msgspec.Struct):
    """An administrative command, or an attempt to log in."""

    at: str
    who: str
    what: str
    subject: str
    outcome: str  # done, or the code of the error
    peer: str | None  # the address, of logins and refused credentials


class AuditResponse(msgspec.Struct):
    lines: list[AuditLineResponse]  # the newest first


def get_recent(services: Services, request: Request, principal: Principal) -> Response:
    """They name users and objects, so they are not for principals with a list of grants."""
    if Permission.ADMIN not in principal.permissions:
        raise principal.refusal(Permission.ADMIN, "read the audit log")
    if principal.access is not None:
        raise Forbidden(
            f"{principal.name!r} may not read the audit log: its grants are limited to some objects", code="NOT_GIVEN"
        )
    return json_response(AuditResponse([_shown(*line) for line in reversed(audit.recent.copy())]))


def _shown(at_ms: int, facts: dict[str, str]) -> AuditLineResponse:
    return AuditLineResponse(
        rfc3339(at_ms), facts["who"], facts["what"], facts["subject"], facts["outcome"], facts.get("peer")
    )
