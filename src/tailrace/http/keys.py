"""Access keys, for administrators. These endpoints take passwords and tokens, not signatures: a key makes no keys."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    KeyInfo,
    ListAccessKeys,
    NewKey,
)
from tailrace.http.codec import json_body, json_response, rfc3339
from tailrace.http.message import Request, Response


class CreateKeyBody(msgspec.Struct):
    principal: str
    role: str | None = None


class SwitchKeyBody(msgspec.Struct):
    disabled: bool


class KeyResponse(msgspec.Struct):
    id: str
    principal: str
    role: str
    created_at: str
    secret: str | UnsetType = UNSET  # of a new key, shown this once
    disabled: bool | UnsetType = UNSET


class KeysResponse(msgspec.Struct):
    keys: list[KeyResponse]


_create: Final = msgspec.json.Decoder(CreateKeyBody)
_switch: Final = msgspec.json.Decoder(SwitchKeyBody)


def parse_list(request: Request) -> ListAccessKeys:
    return ListAccessKeys()


def render_list(request: Request, keys: list[KeyInfo]) -> Response:
    return json_response(KeysResponse([_shown(key) for key in keys]))


def parse_create(request: Request) -> CreateAccessKey:
    body = json_body(request, _create)
    return CreateAccessKey(body.principal, body.role)


def render_created(request: Request, key: NewKey) -> Response:
    shown = KeyResponse(key.id, key.principal, key.role, rfc3339(key.created_ms), secret=key.secret)
    return json_response(shown, 201)


def parse_delete(request: Request, key: str) -> DeleteAccessKey:
    return DeleteAccessKey(key)


def parse_switch(request: Request, key: str) -> DisableAccessKey | EnableAccessKey:
    return DisableAccessKey(key) if json_body(request, _switch).disabled else EnableAccessKey(key)


def render_key(request: Request, key: KeyInfo) -> Response:
    return json_response(_shown(key))


def _shown(key: KeyInfo) -> KeyResponse:
    return KeyResponse(key.id, key.principal, key.role, rfc3339(key.created_ms), disabled=key.disabled)
