"""The options of the format "tailrace", parsed and checked once.

Spark passes them as text, with names in any case. An unknown option is an error that suggests a similar name: a
misspelt `startingOffsets` must not read the whole history.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from tailrace.errors import Invalid

Kind = Literal["table", "topic", "stream"]
Mode = Literal["changes", "items"]
Images = Literal["typed", "json", "variant", "dynamodb"]
KINDS: tuple[Kind, ...] = ("table", "topic", "stream")
EARLIEST = "earliest"
LATEST = "latest"
_DEFAULT_URL = "http://127.0.0.1:4437"

_BOTH = ("url", "token", "user", "password", *KINDS, "label", "consumer")
SOURCE = (
    *_BOTH,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "minPartitions",
    "servers",
    "failOnDataLoss",
    "mode",
    "images",
    "rowSchema",
    "inferSchema",
)
_BOUNDS = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "maxRecordsPerTrigger")
SINK = (*_BOTH, "keyColumn", "valueColumn", "query", "batch")
_SPARKS = {
    "path",
    "checkpointlocation",
    "queryname",
    "outputmode",
    "mergeschema",
}  # of Spark itself, which are passed on too


class ServerAccess(msgspec.Struct, frozen=True):
    """The URL of the server and the credentials. Sent to the executors."""

    url: str
    token: str | None = None
    user: str | None = None
    password: str | None = None


class SourceOptions(msgspec.Struct, frozen=True):
    """The parsed options of a source or a sink."""

    access: ServerAccess
    kind: Kind
    name: str
    label: str | None = None
    consumer: str | None = None
    starting: str | dict[str, int] | None = None  # None: not given
    ending: str | dict[str, int] = LATEST
    starting_ms: int | None = None
    ending_ms: int | None = None
    records_max: int | None = None
    partitions_min: int | None = None
    spread: bool = True  # over all servers of a cluster
    fail_on_data_loss: bool = True
    mode: Mode = "changes"
    images: Images = "typed"
    row_schema: str | None = None  # of the rows of a table, as Spark's DDL
    infer: bool = False
    key_column: str | None = None
    value_column: str | None = None
    query: str | None = None
    batch: int = 0  # of the query

    @property
    def target(self) -> dict[str, str]:
        """The parameters that name the log in requests."""
        named = {str(self.kind): self.name}
        return named if self.label is None else named | {"label": self.label}

    @property
    def noun(self) -> str:
        return f"{self.kind} {self.name!r}"


def read(given: Mapping[str, str], known: tuple[str, ...] = SOURCE) -> SourceOptions:
    """The options of a source, or of a sink."""
    settings = {name.lower(): value for name, value in given.items()}
    _check_names(settings, known)
    kind, name = _named(settings)
    starting, starting_ms = _offsets(settings, "startingOffsets"), _time(settings, "startingTimestamp")
    ending, ending_ms = _offsets(settings, "endingOffsets"), _time(settings, "endingTimestamp")
    if starting is not None and starting_ms is not None:
        raise Invalid("startingOffsets and startingTimestamp exclude each other; give one of them")
    if ending is not None and ending_ms is not None:
        raise Invalid("endingOffsets and endingTimestamp exclude each other; give one of them")
    if ending == EARLIEST:
        raise Invalid("endingOffsets cannot be 'earliest'; give 'latest' or JSON like {\"0\": 100}")
    if settings.get("label") and kind != "table":
        raise Invalid(f"label selects a change stream of a table; remove it for {kind} {name!r}")
    for option in ("mode", "images", "rowSchema"):
        if settings.get(option.lower()) and kind != "table":
            raise Invalid(f"the option {option} is for tables; remove it for {kind} {name!r}")
    if settings.get("mode", "").strip().lower() == "items":
        for option in ("images", "inferSchema", "label", "consumer", *_BOUNDS):
            if settings.get(option.lower()):
                raise Invalid(f"the option {option} is for changes; remove it, or remove mode=items")
    query, batch = settings.get("query") or None, settings.get("batch")
    if (query is None) != (batch is None) or not (batch or "0").isdigit():
        raise Invalid(f"query is {query!r} and batch is {batch!r}; give both, and the batch as a whole number")
    return SourceOptions(
        access=_access(settings),
        kind=kind,
        name=name,
        label=settings.get("label") or None,
        consumer=settings.get("consumer") or None,
        starting=starting,
        ending=LATEST if ending is None else ending,
        starting_ms=starting_ms,
        ending_ms=ending_ms,
        records_max=_count(settings, "maxRecordsPerTrigger"),
        partitions_min=_count(settings, "minPartitions"),
        spread=_choice(settings, "servers", "all", _SERVERS) == "all",
        fail_on_data_loss=_flag(settings, "failOnDataLoss", default=True),
        mode=_choice(settings, "mode", "changes", _MODES),
        images=_choice(settings, "images", "typed", _IMAGES),
        row_schema=settings.get("rowschema") or None,
        infer=_flag(settings, "inferSchema", default=False),
        key_column=settings.get("keycolumn"),
        value_column=settings.get("valuecolumn"),
        query=query,
        batch=int(batch or 0),
    )


def _check_names(settings: Mapping[str, str], known: tuple[str, ...]) -> None:
    ours = {name.lower(): name for name in known}
    for name in settings:
        if name in ours or name in _SPARKS or name.startswith("spark."):
            continue
        near = difflib.get_close_matches(name, ours, n=1)
        hint = f"did you mean {ours[near[0]]!r}?" if near else f"the options are {', '.join(sorted(ours.values()))}"
        raise Invalid(f"there is no option {name!r}; {hint}", code="UNKNOWN_OPTION")


def _named(settings: Mapping[str, str]) -> tuple[Kind, str]:
    given = [(kind, settings[kind]) for kind in KINDS if settings.get(kind)]
    if len(given) != 1:
        named = " and ".join(f"{kind}={name!r}" for kind, name in given) or "none"
        raise Invalid(f"give exactly one of the options table, topic and stream; given: {named}")
    return given[0]


def server_access(url: str | None, token: str | None) -> ServerAccess:
    """The server and the credentials, by default those of the environment."""
    given = {"url": url, "token": token}
    return _access({name: value for name, value in given.items() if value is not None})


def as_options(access: ServerAccess) -> dict[str, str]:
    """The options that name a server."""
    given = {"url": access.url, "token": access.token, "user": access.user, "password": access.password}
    return {name: value for name, value in given.items() if value is not None}


def _access(settings: Mapping[str, str]) -> ServerAccess:
    token, user = settings.get("token"), settings.get("user")
    if token is None and user is None:
        token = os.environ.get("TAILRACE_TOKEN") or None
    url = settings.get("url") or os.environ.get("TAILRACE_URL") or _DEFAULT_URL
    return ServerAccess(url, token, user, settings.get("password"))


def _offsets(settings: Mapping[str, str], name: str) -> str | dict[str, int] | None:
    text = settings.get(name.lower())
    if text is None:
        return None
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if type(found) is int:
        found = {"0": found}
    if not isinstance(found, dict) or not all(_partitioned(key, value) for key, value in found.items()):
        raise Invalid(
            f"{name} is {text!r}; give 'earliest', 'latest' or JSON with an offset for each partition, like "
            '{"0": 100}',
            code="WRONG_OFFSET",
        )
    return found


def _partitioned(key: str, value: object) -> bool:
    return key.isdigit() and type(value) is int and value >= 0


def _time(settings: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970: a number, or ISO 8601, which is UTC where it names no zone."""
    text = settings.get(name.lower())
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Invalid(f"{name} is {text!r}; give milliseconds since 1970 or a time like 2026-01-31T12:00:00Z") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return -(-int(at.timestamp() * 1_000_000) // 1_000)


def _count(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) == 0:
        raise Invalid(f"{name} is {text!r}; give a whole number above zero")
    return int(text)


def _flag(settings: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = settings.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise Invalid(f"{name} is {text!r}; give true or false")
    return text.strip().lower() == "true"


_SERVERS: Final[Mapping[Literal["all", "one"], str]] = {"all": "all of a cluster", "one": "only that of the URL"}
_MODES: Final[Mapping[Mode, str]] = {"changes": "the changes of a table", "items": "its rows as they are now"}
_IMAGES: Final[Mapping[Images, str]] = {
    "typed": "structs",
    "json": "JSON",
    "variant": "VARIANT",
    "dynamodb": "DynamoDB JSON, which is lossless",
}
_C = TypeVar("_C", bound=str)


def _choice(settings: Mapping[str, str], name: str, default: _C, known: Mapping[_C, str]) -> _C:
    text = settings.get(name, default).strip().lower()
    for each in known:
        if text == each:
            return each
    choices = ", ".join(f"{each} ({meaning})" for each, meaning in known.items())
    raise Invalid(f"{name} is {text!r}; give one of {choices}")
