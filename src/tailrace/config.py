"""How a server is set up: `tailrace.toml`, then the environment, then the command line; the later wins.

Every setting is a field of `Config`; ``TAILRACE_<FIELD>`` in the environment sets it too. Fields of a section, which
the file has as ``[topics]``, are ``TAILRACE_TOPICS_<FIELD>`` there. Outside issuers and the options of cold storage
only the file can have.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tailrace import limits
from tailrace.access import ROLES
from tailrace.errors import Invalid

DEFAULT_PORT = 4437
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_HOST = r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?"
_host = re.compile(_HOST, re.ASCII | re.IGNORECASE).fullmatch
_origin = re.compile(rf"([a-z][a-z0-9+.-]{{0,30}})://{_HOST}", re.ASCII | re.IGNORECASE).fullmatch
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class Http(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[http]`: which Hosts and which pages' Origins are served; see `http/origins.py`."""

    allowed_hosts: tuple[str, ...] = ()  # names, with or without a port; in dev mode besides loopback names
    allowed_origins: tuple[str, ...] = ()  # scheme://name[:port]; "*": all, for requests without Basic credentials


class Topics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[topics]`; its names are without units because others chose them."""

    default_consume_timeout: float = limits.CONSUME_TIMEOUT_S  # seconds a consume waits for messages, unless told
    max_consume_timeout: float = limits.CONSUME_TIMEOUT_S_MAX  # and the most it can be told
    allow_user_role_consume: bool = False  # whether the role user may consume and acknowledge


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[auth.issuers]]`: somebody else whose tokens are taken."""

    issuer: str  # the claim iss
    jwks_url: str  # where its keys are; https, or http on this machine
    audience: str  # what the claim aud must hold
    name_claim: str = "sub"  # which claim names the principal
    role_claim: str = "role"  # which one has the role, or several
    roles: dict[str, str] = {}  # their word to our role; empty: they use our words
    default_role: str | None = None  # of those whose claim says nothing known; None: they are refused
    link_users: bool = False  # a token that bears a user's name is that user; otherwise it is refused


class Auth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[auth]`."""

    access_token_s: int = 3_600  # how long the token of a login lasts
    refresh_token_s: int = 7 * 24 * 3_600  # and how long it can be refreshed after that was last done
    issuers: tuple[Issuer, ...] = ()


class Cold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[cold]`: where history goes that is no longer hot."""

    url: str | None = None  # a directory, or s3://bucket/prefix; None: the directory `cold` in that of the database
    cache_bytes: int = limits.SHELF_BYTES  # of what was read from it, kept in memory
    options: dict[str, str] = {}  # for object storage: AWS_ENDPOINT_URL and so on; the environment counts too


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
    unsent_bytes_max: int = limits.UNSENT_BYTES_MAX
    webhook_allow_private: bool = False  # let webhooks go to private addresses; loopback by http is always let in --dev
    log_format: str = "text"  # one of LOG_FORMATS
    log_level: str = "info"  # one of LOG_LEVELS
    http: Http = Http()
    topics: Topics = Topics()
    auth: Auth = Auth()
    cold: Cold = Cold()


SECTIONS: dict[str, type[msgspec.Struct]] = {"http": Http, "topics": Topics, "auth": Auth, "cold": Cold}
LISTS = frozenset((("http", "allowed_hosts"), ("http", "allowed_origins")))  # commas between them, in the environment


def load(path: str | None = None, *, environ: Mapping[str, str] = os.environ, **given: Any) -> Config:
    """The settings of `path` (tailrace.toml if it is there), the environment and what was `given`."""
    settings: dict[str, Any] = {}
    file = Path(path or "tailrace.toml")
    if path is not None or file.is_file():
        try:
            settings.update(tomllib.loads(file.read_text()))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"cannot read the settings in {str(file)!r}: {error}") from error
    for section, name in _names():
        text: Any = environ.get(f"TAILRACE_{section}_{name}".upper() if section else f"TAILRACE_{name}".upper())
        if (section, name) in LISTS and text is not None:
            text = [each.strip() for each in text.split(",") if each.strip()]
        if section:  # on the command line a setting of a section has the section's name before its own
            text = given.pop(f"{section}_{name}", None) or text
        if text is None:
            continue
        if not section:
            settings[name] = text
        elif isinstance(inner := settings.setdefault(section, {}), dict):
            inner[name] = text
    settings.update({name: value for name, value in given.items() if value is not None})
    try:
        config = msgspec.convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a setting is wrong: {error}; see docs/reference/configuration.md") from error
    return _checked(config)


def _names() -> Iterator[tuple[str, str]]:
    """Section (or nothing) and name of each setting that the environment can have."""
    for field in msgspec.structs.fields(Config):
        inner = SECTIONS.get(field.name)
        if inner is None:
            yield "", field.name
        else:
            names = (each.name for each in msgspec.structs.fields(inner))
            yield from ((field.name, name) for name in names if name not in ("issuers", "options"))


def _checked(config: Config) -> Config:
    if not 0 <= config.port <= 65535:
        raise Invalid(f"port {config.port} is out of range; use 0 (any free one) to 65535")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise Invalid("TLS needs both tls_certificate and tls_key; give the other one too")
    check_token(config.token)
    if config.dev and config.host not in LOOPBACK:
        raise Invalid(
            f"--dev lets everyone in, so it listens on loopback only, not on {config.host!r}; "
            f"leave --dev out and set a token to serve others"
        )
    for name in (
        "long_poll_timeout_s",
        "sse_recycle_s",
        "page_bytes",
        "body_bytes_max",
        "connections_max",
        "unsent_bytes_max",
    ):
        _check_positive(name, getattr(config, name))
    for name, known in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
        if getattr(config, name) not in known:
            raise Invalid(f"{name} {getattr(config, name)!r} is unknown; use {', '.join(known)}")
    _check_http(config)
    _check_topics(config.topics)
    _check_cold_url(config.cold.url)
    if config.cold.cache_bytes < limits.SHELF_BYTES_MIN:
        raise Invalid(f"cold.cache_bytes {config.cold.cache_bytes} is too little; use {limits.SHELF_BYTES_MIN} or more")
    _check_positive("auth.access_token_s", config.auth.access_token_s)
    _check_positive("auth.refresh_token_s", config.auth.refresh_token_s)
    for issuer in config.auth.issuers:
        _check_issuer(issuer)
    names = [issuer.issuer for issuer in config.auth.issuers]
    if len(set(names)) != len(names):
        raise Invalid("auth.issuers has the same issuer twice; leave one of them")
    return config


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise Invalid(f"{name} must be a finite number above 0, not {value}")


def _check_cold_url(url: str | None) -> None:
    """Tell at the start, not at the first read. A URL that may have keys in it is not repeated."""
    if url is None:
        return
    if not url:
        raise Invalid("cold.url is empty; give a directory, file:///... or s3://bucket/prefix")
    scheme, apart, rest = url.partition("://")
    if not apart:
        return  # a directory
    host = rest.partition("/")[0]
    if scheme not in ("file", "s3", "s3a"):
        raise Invalid(f"cold.url does not know {scheme[:20]}://; give a directory, file:///... or s3://bucket/prefix")
    # A secret may have slashes in it, and then no parser of URLs takes it for one.
    if "@" in host or (scheme != "file" and ("@" in rest or ":" in host)):
        raise Invalid(
            f"cold.url has keys in it ({scheme}://…@…), and is told to everyone who may read; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    if scheme != "file" and (not host or "?" in rest or "#" in rest):
        raise Invalid("cold.url is no URL of a bucket; write s3://bucket/prefix, settings go into cold.options")
    if scheme == "file" and host not in ("", "localhost"):
        raise Invalid(f"cold.url {url!r} names another machine; a local directory is file:///path, with three slashes")


def check_token(token: str | None) -> None:
    """Raise where the server's token could be guessed: it may do everything."""
    if token and len(token) < limits.SERVER_TOKEN_CHARACTERS_MIN:
        raise Invalid(
            f"the token has {len(token)} characters, and needs at least {limits.SERVER_TOKEN_CHARACTERS_MIN}, since it "
            "may do everything; make one with: openssl rand -hex 32",
            code="WEAK_TOKEN",
        )


def origin_of(text: str) -> str | None:
    """An origin as it is compared, ``scheme://name[:port]`` without a default port; None if it is none."""
    match = _origin(text)
    if match is None:
        return None
    scheme, name, port = match[1].lower(), match[2].lower().removesuffix("."), match[3]
    return f"{scheme}://{name}" if port is None or port == _DEFAULT_PORTS.get(scheme) else f"{scheme}://{name}:{port}"


def host_of(text: str) -> tuple[str, str | None] | None:
    """Name and port of a Host field; None if it is none."""
    match = _host(text)
    return None if match is None else (match[1].lower().removesuffix("."), match[2])


def _check_http(config: Config) -> None:
    for text in config.http.allowed_hosts:
        if host_of(text) is None:
            raise Invalid(f"http.allowed_hosts: {text[:100]!r} is no host name; write name or name:port")
    for text in config.http.allowed_origins:
        if text == "*" and config.dev:
            raise Invalid(
                'http.allowed_origins: "*" would let every web page use a server in dev mode, which has no '
                "authentication; list the origins by name"
            )
        if text != "*" and origin_of(text) is None:
            raise Invalid(
                f"http.allowed_origins: {text[:100]!r} is no origin; write scheme://name[:port] without a path, as in "
                "https://app.example.com"
            )


def _check_topics(topics: Topics) -> None:
    longest = topics.max_consume_timeout
    if not 0 < longest <= limits.CONSUME_TIMEOUT_S_MAX:
        raise Invalid(
            f"topics.max_consume_timeout must be above 0 and at most {limits.CONSUME_TIMEOUT_S_MAX:g} seconds, "
            f"not {longest}"
        )
    if not 0 <= topics.default_consume_timeout <= longest:
        raise Invalid(
            f"topics.default_consume_timeout must be 0 to max_consume_timeout ({longest:g}), "
            f"not {topics.default_consume_timeout}"
        )


def _check_issuer(issuer: Issuer) -> None:
    where = f"auth.issuers, {issuer.issuer!r}"
    if not issuer.issuer or issuer.issuer == "tailrace":
        raise Invalid(f"{where}: issuer must be what the tokens have as iss, and not 'tailrace', which is this server")
    if not issuer.audience:
        raise Invalid(f"{where}: audience is empty; name what the tokens are made for, or any token of theirs would do")
    url = urlsplit(issuer.jwks_url)
    if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK)):
        raise Invalid(f"{where}: jwks_url {issuer.jwks_url!r} must be https, or http on this machine")
    for role in (*issuer.roles.values(), *(() if issuer.default_role is None else (issuer.default_role,))):
        if role not in ROLES:
            raise Invalid(f"{where}: there is no role {role!r}; use {', '.join(ROLES)}")
        if role == "system":
            raise Invalid(f"{where}: the role system is not given to outsiders; use dba at most")
