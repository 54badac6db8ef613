"""Users, for administrators.

Passwords come in the clear, so this is for TLS or for the same machine; they are hashed before a command is made, in
the threads that check passwords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.access import Permission, Principal
from tailrace.auth import users
from tailrace.auth.users import DropUser, FindUser, ListUsers, UserInfo
from tailrace.errors import NotFound
from tailrace.http.codec import json_body, json_response, rfc3339
from tailrace.http.message import Request, Response
from tailrace.http.route import decode_path

if TYPE_CHECKING:
    from tailrace.http.services import Services

BODY_BYTES_MAX: Final = 256 * 1024


class CreateUserBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    password: str | None = None
    role: str = "user"
    access: list[str] | None = None


class AlterUserBody(msgspec.Struct, forbid_unknown_fields=True):
    """Fields that are left out stay as they are; null removes the password or the list of grants."""

    password: str | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    access: list[str] | UnsetType | None = UNSET
    disabled: bool | UnsetType = UNSET


class UserResponse(msgspec.Struct):
    name: str
    role: str
    access: tuple[str, ...] | None  # null: everything
    password: bool  # whether there is one
    disabled: bool
    created_at: str
    updated_at: str


class UsersResponse(msgspec.Struct):
    users: list[UserResponse]


_create: Final = msgspec.json.Decoder(CreateUserBody)
_alter: Final = msgspec.json.Decoder(AlterUserBody)


def parse_list(request: Request) -> ListUsers:
    return ListUsers()


def render_list(request: Request, found: list[UserInfo]) -> Response:
    return json_response(UsersResponse([_shown(user) for user in found]))


def parse_get(request: Request, name: str) -> FindUser:
    return FindUser(name)


def render_found(request: Request, user: UserInfo | None) -> Response:
    if user is None:
        name = decode_path(request.path.rpartition(b"/")[2])
        raise NotFound(f"there is no user {name[:64]!r}", code="USER_NOT_FOUND")
    return json_response(_shown(user))


async def create(services: Services, request: Request, principal: Principal) -> Response:
    """A new user."""
    _check_administrator(principal, "CreateUser")
    body = json_body(request, _create, BODY_BYTES_MAX)
    command = await services.authenticator.offload(users.create_user, body.name, body.password, body.role, body.access)
    return json_response(_shown(await services.db.aexecute(command, principal)), 201)


async def alter(services: Services, request: Request, principal: Principal, name: str) -> Response:
    """A user with another password, role, list of grants, or disabled."""
    _check_administrator(principal, "AlterUser")
    body = json_body(request, _alter, BODY_BYTES_MAX)
    command = await services.authenticator.offload(users.alter_user, name, **msgspec.structs.asdict(body))
    return json_response(_shown(await services.db.aexecute(command, principal)))


def parse_drop(request: Request, name: str) -> DropUser:
    return DropUser(name=name)


def _check_administrator(principal: Principal, command: str) -> None:
    """Refuse before a password is hashed; the permission of the command is checked all the same."""
    if Permission.ADMIN not in principal.permissions:
        raise principal.refusal(Permission.ADMIN, command)


def _shown(user: UserInfo) -> UserResponse:
    return UserResponse(
        user.name,
        user.role,
        user.access,
        user.password,
        user.disabled,
        rfc3339(user.created_ms),
        rfc3339(user.updated_ms),
    )
