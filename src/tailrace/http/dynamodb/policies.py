"""The operations on resource policies: the shapes of their requests, and their responses."""

from __future__ import annotations

import re
from typing import Any, Final

from tailrace.errors import Invalid, NotFound
from tailrace.http.dynamodb import render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import Boolean, Operation, Request, String, Structure
from tailrace.tables.policies import NO_POLICY_CODE, DeletePolicy, GetPolicy, PutPolicy

_ARN: Final = String(least=1, most=1283)
_REVISION: Final = String(least=1, most=255)
_resource_of: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:([0-9]*):table/([a-zA-Z0-9_.-]{3,255})(?:/stream/([0-9T:.-]{1,64}))?"
).fullmatch


def _resource(request: Request) -> tuple[str, str]:
    """The table, and the label of its stream or an empty text."""
    arn = request["ResourceArn"]
    match = _resource_of(arn)
    if match is None or match[1] != render.ACCOUNT:
        raise Invalid(f"Invalid ResourceArn: it is the ARN of a table or of a stream of this account: {arn[:200]}")
    return match[2], match[3] or ""


async def _execute(context: Context, request: Request, command: PutPolicy | GetPolicy | DeletePolicy) -> Any:
    """The result of a command; its error names the resource as the request does."""
    try:
        return await context.execute(command)
    except NotFound as error:
        if error.code != NO_POLICY_CODE:
            raise
        text = f"Resource-based policy not found for the provided ResourceArn: {request['ResourceArn']}"
        raise NotFound(text, code=NO_POLICY_CODE) from None


async def _put(context: Context, request: Request) -> dict[str, Any]:
    command = PutPolicy(
        *_resource(request),
        request["Policy"],
        request.get("ExpectedRevisionId"),
        request.get("ConfirmRemoveSelfResourceAccess", False),
    )
    return {"RevisionId": await _execute(context, request, command)}


async def _get(context: Context, request: Request) -> dict[str, Any]:
    row = await _execute(context, request, GetPolicy(*_resource(request)))
    return {"Policy": row.text, "RevisionId": row.revision}


async def _delete(context: Context, request: Request) -> dict[str, Any]:
    command = DeletePolicy(*_resource(request), request.get("ExpectedRevisionId"))
    return {"RevisionId": await _execute(context, request, command)}


OPERATIONS: Final[dict[str, Operation]] = {
    "PutResourcePolicy": Operation(
        Structure(
            "PutResourcePolicyInput",
            {
                "ResourceArn": _ARN,
                "Policy": String(),
                "ExpectedRevisionId": _REVISION,
                "ConfirmRemoveSelfResourceAccess": Boolean(),
            },
            required=("ResourceArn", "Policy"),
        ),
        _put,
        names_table=True,
    ),
    "GetResourcePolicy": Operation(
        Structure("GetResourcePolicyInput", {"ResourceArn": _ARN}, required=("ResourceArn",)), _get, names_table=True
    ),
    "DeleteResourcePolicy": Operation(
        Structure(
            "DeleteResourcePolicyInput",
            {"ResourceArn": _ARN, "ExpectedRevisionId": _REVISION},
            required=("ResourceArn",),
        ),
        _delete,
        names_table=True,
    ),
}
