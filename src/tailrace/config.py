"""How a server is set up: `tailrace.toml`, then the environment, then the command line; the later wins.

Every setting is a field of `Config`; ``TAILRACE_<FIELD>`` in the environment sets it too.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailrace import limits
from tailrace.errors import Invalid

DEFAULT_PORT = 4437
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str = "data"  # the directory of the database
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    dev: bool = False  # loopback only, everyone is let in
    token: str | None = None  # what a client must send as "Authorization: Bearer ..."
    public_url: str | None = None  # how clients reach this server, where it is not what they put into Host
    tls_certificate: str | None = None
    tls_key: str | None = None
    long_poll_timeout_s: float = limits.LONG_POLL_TIMEOUT_S
    sse_recycle_s: float = limits.SSE_RECYCLE_S
    page_bytes: int = limits.PAGE_BYTES
    body_bytes_max: int = limits.BODY_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    webhook_allow_private: bool = False  # let webhooks go to private addresses; loopback by http is always let in --dev
    log_format: str = "text"  # one of LOG_FORMATS
    log_level: str = "info"  # one of LOG_LEVELS


def load(path: str | None = None, *, environ: Mapping[str, str] = os.environ, **given: Any) -> Config:
    """The settings of `path` (tailrace.toml if it is there), the environment and what was `given`."""
    settings: dict[str, Any] = {}
    file = Path(path or "tailrace.toml")
    if path is not None or file.is_file():
        try:
            settings.update(tomllib.loads(file.read_text()))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"cannot read the settings in {str(file)!r}: {error}") from error
    for field in msgspec.structs.fields(Config):
        text = environ.get(f"TAILRACE_{field.name.upper()}")
        if text is not None:
            settings[field.name] = text
    settings.update({name: value for name, value in given.items() if value is not None})
    try:
        config = msgspec.convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a setting is wrong: {error}; see docs/reference/configuration.md") from error
    return _checked(config)


def _checked(config: Config) -> Config:
    if not 0 <= config.port <= 65535:
        raise Invalid(f"port {config.port} is out of range; use 0 (any free one) to 65535")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise Invalid("TLS needs both tls_certificate and tls_key; give the other one too")
    if config.dev and config.host not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid(
            f"--dev lets everyone in, so it listens on loopback only, not on {config.host!r}; "
            f"leave --dev out and set a token to serve others"
        )
    if not config.dev and not config.token:
        raise Invalid("nobody could be let in: set a token (TAILRACE_TOKEN) or use --dev on this machine")
    for name in ("long_poll_timeout_s", "sse_recycle_s", "page_bytes", "body_bytes_max", "connections_max"):
        if not 0 < getattr(config, name) < math.inf:
            raise Invalid(f"{name} must be a finite number above 0, not {getattr(config, name)}")
    for name, known in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
        if getattr(config, name) not in known:
            raise Invalid(f"{name} {getattr(config, name)!r} is unknown; use {', '.join(known)}")
    return config
