"""The configuration of a server: `tailrace.toml`, overridden by the environment, overridden by the command line.

Every setting is a field of `Config`, and ``TAILRACE_<FIELD>`` in the environment. A field of a section, such as
``[topics]`` in the file, is ``TAILRACE_TOPICS_<FIELD>`` there. External issuers, buckets and the options of object
storage can only be set in the file.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from tailrace import limits
from tailrace.access import ROLES
from tailrace.errors import Invalid

DEFAULT_PORT = 4437
DATABASE_URLS = ("postgresql://", "postgres://")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_HOST = r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?"
_host = re.compile(_HOST, re.ASCII | re.IGNORECASE).fullmatch
_origin = re.compile(rf"([a-z][a-z0-9+.-]{{0,30}})://{_HOST}", re.ASCII | re.IGNORECASE).fullmatch
_bucket = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}[A-Za-z0-9]", re.ASCII).fullmatch
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[http]`: the accepted Host and Origin headers; see `http/origins.py`."""

    allowed_hosts: tuple[str, ...] = ()  # names, with or without a port; in dev mode in addition to loopback names
    allowed_origins: tuple[str, ...] = ()  # scheme://name[:port]; "*": all, for requests without Basic credentials


class TopicsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[topics]`; its names have no units, for compatibility."""

    default_consume_timeout: float = limits.CONSUME_TIMEOUT_S  # seconds a consume waits for messages by default
    max_consume_timeout: float = limits.CONSUME_TIMEOUT_S_MAX  # and at most
    allow_user_role_consume: bool = False  # whether the role user may consume and acknowledge


class IssuerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[auth.issuers]]`: an external issuer whose tokens are accepted."""

    issuer: str  # the value of the claim iss
    jwks_url: str  # the URL of its keys; https, or http on this machine
    audience: str  # the value that the claim aud must contain
    name_claim: str = "sub"  # the claim with the principal's name
    role_claim: str = "role"  # the claim with the role, or several roles
    roles: dict[str, str] = {}  # maps the issuer's roles to ours; empty: the issuer uses our names
    default_role: str | None = None  # for tokens without a known role; None: such tokens are rejected
    link_users: bool = False  # accept a token with the name of a user as that user; otherwise it is rejected


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[auth]`."""

    access_token_s: int = limits.ACCESS_TOKEN_S  # lifetime of the access token of a login
    refresh_token_s: int = limits.REFRESH_TOKEN_S  # a session ends this long after its last refresh
    issuers: tuple[IssuerConfig, ...] = ()


class ColdConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[cold]`: where history is moved that is trimmed from the database."""

    url: str | None = None  # a directory, or s3://bucket/prefix; None: the directory `cold` in the data directory
    cache_bytes: int = limits.COLD_CACHE_BYTES  # memory of the cold cache
    options: dict[str, str] = {}  # for object storage: AWS_ENDPOINT_URL and so on, in addition to the environment


class TransfersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[transfers]`: the buckets of exports and imports of tables."""

    buckets: dict[str, str] = {}  # by name: a directory, or s3://bucket/prefix
    options: dict[str, str] = {}  # for object storage, as of `[cold]`


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[cluster]`: several servers over one database in PostgreSQL, which all serve."""

    listen: str | None = None  # HOST:PORT at which this server takes the commands of others when it leads
    advertise: str | None = None  # HOST:PORT at which the others reach that; None: as `listen`
    advertise_url: str | None = None  # the URL at which clients reach this very server; None: public_url, or its own
    secret_file: str | None = None  # the file with the secret that all servers share


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str = "data"  # the directory of the database
    database: str | None = (
        None  # postgresql://...: the database is there, and the directory has its key and cold storage
    )
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    dev: bool = False  # dev mode: authentication is off, loopback only
    token: str | None = None  # the server token, sent as "Authorization: Bearer ..."
    public_url: str | None = (
        None  # the URL at which clients reach this server, if it is not the one in their Host header
    )
    tls_certificate: str | None = None
    tls_key: str | None = None
    long_poll_timeout_s: float = limits.LONG_POLL_TIMEOUT_S
    sse_recycle_s: float = limits.SSE_RECYCLE_S
    page_bytes: int = limits.PAGE_BYTES
    body_bytes_max: int = limits.BODY_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    unsent_bytes_max: int = limits.UNSENT_BYTES_MAX
    webhook_allow_private: bool = (
        False  # allow webhooks to private addresses; http to loopback is always allowed in dev mode
    )
    workers: int | Literal["auto"] = 1  # processes that serve HTTP; above 1 another one writes; auto: one per core
    log_format: str = "text"  # one of LOG_FORMATS
    log_level: str = "info"  # one of LOG_LEVELS
    http: HttpConfig = HttpConfig()
    topics: TopicsConfig = TopicsConfig()
    auth: AuthConfig = AuthConfig()
    cold: ColdConfig = ColdConfig()
    transfers: TransfersConfig = TransfersConfig()
    cluster: ClusterConfig = ClusterConfig()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "http": HttpConfig,
    "topics": TopicsConfig,
    "auth": AuthConfig,
    "cold": ColdConfig,
    "transfers": TransfersConfig,
    "cluster": ClusterConfig,
}
LISTS = frozenset((("http", "allowed_hosts"), ("http", "allowed_origins")))  # comma-separated in the environment


def load(path: str | None = None, *, environ: Mapping[str, str] = os.environ, **overrides: Any) -> Config:
    """The settings of `path` (by default tailrace.toml, if it exists), the environment and `overrides`."""
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
            text = overrides.pop(f"{section}_{name}", None) or text
        if text is None:
            continue
        if not section:
            settings[name] = text
        elif isinstance(inner := settings.setdefault(section, {}), dict):
            inner[name] = text
    settings.update({name: value for name, value in overrides.items() if value is not None})
    try:
        config = msgspec.convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a setting is wrong: {error}; see docs/reference/configuration.md") from error
    return _checked(config)


def _names() -> Iterator[tuple[str, str]]:
    """Section (or "") and name of each setting that the environment can set."""
    for field in msgspec.structs.fields(Config):
        inner = SECTIONS.get(field.name)
        if inner is None:
            yield "", field.name
        else:
            names = (each.name for each in msgspec.structs.fields(inner))
            yield from ((field.name, name) for name in names if name not in ("issuers", "options", "buckets"))


def _checked(config: Config) -> Config:
    if not 0 <= config.port <= 65535:
        raise Invalid(f"port {config.port} is out of range; use 0 (any free one) to 65535")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise Invalid("TLS needs both tls_certificate and tls_key; give the other one too")
    check_token(config.token)
    check_database_url(config.database)
    if config.dev and config.host not in LOOPBACK:
        raise Invalid(
            f"in dev mode authentication is off, so the server listens on loopback only, not on {config.host!r}; "
            f"leave --dev out and set a token to serve other machines"
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
    if config.workers != "auto" and not 1 <= config.workers <= limits.WORKERS_MAX:
        raise Invalid(
            f"workers {config.workers} is out of range; use 1 to {limits.WORKERS_MAX}, or auto (one per core)"
        )
    if config.database is not None and config.workers != 1:
        raise Invalid(
            f"workers {config.workers} and database cannot be combined: workers read the files of a data directory; "
            "use workers 1 with PostgreSQL, or leave database out"
        )
    _check_cluster(config)
    _check_http(config)
    _check_topics(config.topics)
    _check_url("cold.url", config.cold.url)
    for name, url in config.transfers.buckets.items():
        if _bucket(name) is None:
            raise Invalid(f"transfers.buckets: {name[:80]!r} is not the name of a bucket; use letters, digits, . and -")
        _check_url(f"transfers.buckets.{name}", url)
    if config.cold.cache_bytes < limits.COLD_CACHE_BYTES_MIN:
        raise Invalid(
            f"cold.cache_bytes {config.cold.cache_bytes} is too little; use {limits.COLD_CACHE_BYTES_MIN} or more"
        )
    _check_positive("auth.access_token_s", config.auth.access_token_s)
    _check_positive("auth.refresh_token_s", config.auth.refresh_token_s)
    for issuer in config.auth.issuers:
        _check_issuer(issuer)
    names = [issuer.issuer for issuer in config.auth.issuers]
    if len(set(names)) != len(names):
        raise Invalid("auth.issuers has the same issuer twice; remove one of them")
    return config


def check_database_url(url: str | None) -> None:
    """Raise `Invalid` unless it is None or the URL of a database in PostgreSQL."""
    if url is not None and not url.startswith(DATABASE_URLS):
        shown = url.partition("://")[0] if "://" in url else url[:80]
        raise Invalid(f"database {shown!r} is not a URL that begins with postgresql://; for a directory use data")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; `Invalid` if it is something else."""
    match = _host(text)
    if match is None or match[2] is None or int(match[2]) > 65535:
        raise Invalid(f"{text[:100]!r} is not an address; write HOST:PORT, as in 0.0.0.0:4439")
    return match[1].strip("[]"), int(match[2])


def _check_cluster(config: Config) -> None:
    cluster = config.cluster
    if cluster == ClusterConfig():
        return
    if cluster.listen is None or cluster.secret_file is None:
        raise Invalid("a server of a cluster needs both cluster.listen and cluster.secret_file; give the other one too")
    if config.database is None:
        raise Invalid("a cluster needs a database that all servers reach; set database to postgresql://...")
    host, _ = address_of(cluster.listen)
    if cluster.advertise is not None:
        address_of(cluster.advertise)
    elif host in ("0.0.0.0", "::"):
        raise Invalid(
            f"cluster.listen {cluster.listen!r} is every address of this machine, which is no "
            "address for other servers; set cluster.advertise to HOST:PORT as they reach it"
        )
    url = urlsplit(cluster.advertise_url or "http://localhost")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Invalid(
            f"cluster.advertise_url {cluster.advertise_url!r} is not a URL of this server: http(s)://host:port"
        )


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise Invalid(f"{name} must be a finite number above 0, not {value}")


def _check_url(setting: str, url: str | None) -> None:
    """Fail at the start, not at the first read. A URL that may contain keys is not repeated in the error."""
    if url is None:
        return
    if not url:
        raise Invalid(f"{setting} is empty; give a directory, file:///... or s3://bucket/prefix")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return  # a directory
    host = rest.partition("/")[0]
    if scheme not in ("file", "s3", "s3a"):
        raise Invalid(
            f"{setting} does not support {scheme[:20]}://; use a directory, file:///... or s3://bucket/prefix"
        )
    # A secret may contain slashes; a URL parser would not recognise it as a password then.
    if "@" in host or (scheme != "file" and ("@" in rest or ":" in host)):
        raise Invalid(
            f"{setting} contains credentials ({scheme}://…@…), and every principal that may read can see it; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    if scheme != "file" and (not host or "?" in rest or "#" in rest):
        raise Invalid(f"{setting} is not the URL of a bucket; write s3://bucket/prefix, with options in the section")
    if scheme == "file" and host not in ("", "localhost"):
        raise Invalid(f"{setting} {url!r} names another machine; a local directory is file:///path, with three slashes")


def check_token(token: str | None) -> None:
    """Raise if the server token is too easy to guess: it has all permissions."""
    if token and len(token) < limits.SERVER_TOKEN_CHARACTERS_MIN:
        raise Invalid(
            f"the token has {len(token)} characters, and needs at least {limits.SERVER_TOKEN_CHARACTERS_MIN}, since it "
            "grants all permissions; make one with: openssl rand -hex 32",
            code="WEAK_TOKEN",
        )


def origin_of(text: str) -> str | None:
    """An origin in canonical form, ``scheme://name[:port]`` without a default port; None if it is not an origin."""
    match = _origin(text)
    if match is None:
        return None
    scheme, name, port = match[1].lower(), match[2].lower().removesuffix("."), match[3]
    return f"{scheme}://{name}" if port is None or port == _DEFAULT_PORTS.get(scheme) else f"{scheme}://{name}:{port}"


def host_of(text: str) -> tuple[str, str | None] | None:
    """Name and port of a Host header; None if it is malformed."""
    match = _host(text)
    return None if match is None else (match[1].lower().removesuffix("."), match[2])


def _check_http(config: Config) -> None:
    for text in config.http.allowed_hosts:
        if host_of(text) is None:
            raise Invalid(f"http.allowed_hosts: {text[:100]!r} is not a host name; write name or name:port")
    for text in config.http.allowed_origins:
        if text == "*" and config.dev:
            raise Invalid(
                'http.allowed_origins: "*" would let every web page use a server in dev mode, which has no '
                "authentication; list the origins by name"
            )
        if text != "*" and origin_of(text) is None:
            raise Invalid(
                f"http.allowed_origins: {text[:100]!r} is not an origin; write scheme://name[:port] without a path, "
                "as in https://app.example.com"
            )


def _check_topics(topics: TopicsConfig) -> None:
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


def _check_issuer(issuer: IssuerConfig) -> None:
    where = f"auth.issuers, {issuer.issuer!r}"
    if not issuer.issuer or issuer.issuer == "tailrace":
        raise Invalid(f"{where}: issuer must be the claim iss of the tokens, and not 'tailrace', which is this server")
    if not issuer.audience:
        raise Invalid(
            f"{where}: audience is empty, so any token of the issuer would be accepted; set the claim aud to expect"
        )
    url = urlsplit(issuer.jwks_url)
    if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK)):
        raise Invalid(f"{where}: jwks_url {issuer.jwks_url!r} must be https, or http on this machine")
    for role in (*issuer.roles.values(), *(() if issuer.default_role is None else (issuer.default_role,))):
        if role not in ROLES:
            raise Invalid(f"{where}: there is no role {role!r}; use {', '.join(ROLES)}")
        if role == "system":
            raise Invalid(f"{where}: an external issuer cannot grant the role system; use dba at most")
