"""Commands, results, errors and notices as messages between processes.

Every command has a *tag*, its class name, which is stable: a process finds the class of a tag in `COMMANDS`, which has
all of them. A command is a MessagePack map of its fields, so that a version may add a field with a default and still
understand the version before. Compiled conditions, updates and SQL terms travel as text with the values of their
placeholders, and are compiled where the command runs; so nothing in a message depends on the process that made it. The
type of a result is that of the command's `run`. Values whose types are only known at run time (parameters of SQL, facts
of errors) are *plain*: see `plain`.
"""

from __future__ import annotations

import logging
import typing
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, Final

import msgspec

from tailrace import errors
from tailrace.auth import access_key, keys, sessions, tokens, users
from tailrace.bus import server_commands
from tailrace.command import Command
from tailrace.errors import Error
from tailrace.jobs import apply, identity, partitions, tiering, view, view_fill
from tailrace.jobs import commands as jobs
from tailrace.jobs import sweep as jobs_sweep
from tailrace.log import notices
from tailrace.sql import commands as sql
from tailrace.sql import error as _sql_errors  # noqa: F401 - its errors are among the types
from tailrace.sql import schema_commands
from tailrace.sql.commands import InsertRows, KeyedRows, RowExpression, UpdateRows
from tailrace.storage.notice import Notice
from tailrace.streams import commands as streams
from tailrace.streams import sweep as streams_sweep
from tailrace.subscriptions import commands as subscriptions
from tailrace.subscriptions import dispatch, signing, subscription
from tailrace.tables import (
    backups,
    change_stream,
    change_trimming,
    copying,
    cursors,
    lifecycle,
    operations,
    partiql_commands,
    policies,
    seal,
    sources,
)
from tailrace.tables import commands as tables
from tailrace.tables import sweep as tables_sweep
from tailrace.tables.condition import ItemCondition
from tailrace.tables.partiql_commands import ItemWhere
from tailrace.tables.update import ItemUpdate
from tailrace.topics import backfill, consuming, consumption, group
from tailrace.topics import commands as topics
from tailrace.topics import sweep as topics_sweep
from tailrace.transactions import commands as transactions
from tailrace.transfers import commands as transfers

UNSENDABLE: Final = "UNSENDABLE"
logger = logging.getLogger("tailrace.bus")
_HOMES: Final = (
    apply, backfill, backups, change_stream, change_trimming, consuming, consumption, copying, cursors, dispatch,
    identity, jobs, jobs_sweep, keys, lifecycle, operations, partiql_commands, partitions, policies, schema_commands,
    seal, server_commands, sessions, signing, sql, streams, streams_sweep, subscriptions, tables, tables_sweep, tiering,
    tokens, topics, topics_sweep, transactions, transfers, users, view, view_fill,
)  # fmt: skip


def _defined(kind: type[Any], homes: tuple[Any, ...]) -> Iterator[tuple[str, type[Any]]]:
    for home in homes:
        for name, found in vars(home).items():
            if isinstance(found, type) and issubclass(found, kind) and found.__module__ == home.__name__:
                yield name, found


COMMANDS: Final[Mapping[str, type[Command[Any]]]] = dict(_defined(Command, _HOMES))
NOTICES: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        notices.Advanced, notices.Ended, group.GroupMoved, group.TopicChanged, subscription.Changed, users.UserChanged,
        access_key.KeyChanged, policies.PolicyChanged,
    )
}  # fmt: skip
# A command whose field holds other commands, of several classes: each travels with its tag. Its other fields are plain.
NESTED: Final[Mapping[type[Command[Any]], str]] = {tables.TransactWrite: "actions", tables.BatchWrite: "writes"}


# -- plain values: what JSON has, and bytes, decimals, sets and numbers of any size

_DECIMAL, _SET, _INTEGER, _TUPLE = 1, 2, 3, 4
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def plain(value: Any) -> Any:
    """The same value, with marks on what MessagePack does not distinguish."""
    kind = type(value)
    if kind is int and not _INT_MIN <= value <= _INT_MAX:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    if kind is Decimal:
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if kind is list:
        return [plain(each) for each in value]
    if kind is tuple:
        return msgspec.msgpack.Ext(_TUPLE, _encode([plain(each) for each in value]))
    if kind in (set, frozenset):
        return msgspec.msgpack.Ext(_SET, _encode([plain(each) for each in value]))
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return value


def _unmark(code: int, data: memoryview) -> Any:
    if code == _DECIMAL:
        return Decimal(bytes(data).decode())
    if code == _INTEGER:
        return int(bytes(data))
    if code == _TUPLE:
        return tuple(_decode_plain(data))
    assert code == _SET, f"an extension of MessagePack with code {code}"
    return set(_decode_plain(data))


_decode_plain: Final = msgspec.msgpack.Decoder(ext_hook=_unmark).decode


# -- commands


def _encode_compiled(value: Any) -> Any:
    """Objects that are no structs, for the encoder."""
    if isinstance(value, ItemCondition | ItemUpdate | ItemWhere):
        return sources.source_of(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to another process")


_COMPILE: Final[Mapping[type, Callable[[Any], Any]]] = {
    ItemCondition: sources.condition,
    ItemUpdate: sources.update,
    ItemWhere: sources.where,
}


def _decode_compiled(kind: type, source: Any) -> Any:
    compiled = _COMPILE.get(kind)
    if compiled is None:
        raise NotImplementedError(f"{kind.__name__} cannot be received from another process")
    return compiled(source)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_encode_compiled).encode


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_compiled, ext_hook=_unmark).decode


def decode_plain(kind: Any, body: bytes) -> Any:
    """A struct of this type, in which some values are plain."""
    return _decoder(kind)(body)


def encode_command(command: Command[Any]) -> tuple[str, bytes]:
    """The tag of a command, and its fields. `Invalid` if a text is not valid Unicode, a number is too large, or a value
    is nested too deeply or of an unknown type: no command accepts such a value."""
    try:
        return _encode_command(command)
    except (UnicodeEncodeError, OverflowError) as error:
        raise errors.Invalid(
            f"{type(command).__name__} has a text that is not valid UTF-8, or a number beyond 64 bits: {error}",
            code=UNSENDABLE,
        ) from None
    except (RecursionError, TypeError, NotImplementedError) as error:
        raise unsendable(command, error) from None


def unsendable(command: Command[Any], error: Exception) -> errors.Invalid:
    """The error of a command that cannot be encoded."""
    reason = "a value is nested too deeply; use fewer levels" if isinstance(error, RecursionError) else error
    return errors.Invalid(f"{type(command).__name__} cannot be sent to the writer: {reason}", code=UNSENDABLE)


def _encode_command(command: Command[Any]) -> tuple[str, bytes]:
    kind = type(command)
    nested = NESTED.get(kind)
    if nested is None:
        return kind.__name__, _encode(_marked(command) if isinstance(command, InsertRows | KeyedRows) else command)
    fields = msgspec.structs.asdict(command)
    parts = [_encode_command(part) for part in fields.pop(nested)]
    return kind.__name__, _encode((parts, fields))


def _marked(command: InsertRows | KeyedRows) -> Command[Any]:
    """The command, with the parameters of its expressions made plain."""

    def marked(expression: RowExpression) -> RowExpression:
        return msgspec.structs.replace(expression, params=tuple(plain(each) for each in expression.params))

    made: dict[str, Any] = {"where": tuple(marked(each) for each in command.where)}
    if isinstance(command, InsertRows | UpdateRows):
        made["sets"] = tuple((name, marked(each)) for name, each in command.sets)
    return msgspec.structs.replace(command, **made)


def decode_command(tag: str, body: bytes) -> Command[Any]:
    """The command of a tag and its fields. Raises `Invalid` for a tag that this version does not know."""
    kind = COMMANDS.get(tag)
    if kind is None:
        raise errors.Invalid(
            f"there is no command {tag!r} here; run the same version everywhere", code="UNKNOWN_COMMAND"
        )
    nested = NESTED.get(kind)
    if nested is None:
        return _decoder(kind)(body)  # type: ignore[no-any-return]
    parts, fields = _decoder(tuple[list[tuple[str, bytes]], dict[str, Any]])(body)
    return kind(**{nested: tuple([decode_command(*part) for part in parts])}, **fields)


# -- results


@cache
def result_type(kind: type[Command[Any]]) -> Any:
    """The type of a command's result."""
    hints = typing.get_type_hints(kind.run)
    found = hints["return"]
    assert not isinstance(found, typing.TypeVar), f"{kind.__name__}.run does not declare its result"
    return found


def encode_result(result: Any) -> bytes:
    return _encode(result)


def decode_result(kind: type[Command[Any]], body: bytes) -> Any:
    return _decoder(result_type(kind))(body)


# -- errors


class RemoteFailure(Exception):
    """A bug of Tailrace that showed in another process, whose log has the traceback."""


@cache
def _error_types() -> Mapping[str, type[Error]]:
    found: dict[str, type[Error]] = {}
    todo: list[type[Error]] = [Error]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.__name__, kind)
        todo += kind.__subclasses__()
    return found


def encode_error(error: BaseException) -> bytes:
    """An error with its class, its message and its attributes. It never fails: text that is not valid Unicode is
    escaped, and an error with an attribute that cannot be encoded becomes a `RemoteFailure`."""
    try:
        return _encode_error(error, lambda held: held)
    except Exception:
        try:
            return _encode_error(error, _escaped)
        except Exception:
            logger.exception("an error %s could not be sent whole", type(error).__name__)
            return _encode(("", f"{type(error).__name__}: {error!a}", {}))


def _encode_error(error: BaseException, text: Callable[[Any], Any]) -> bytes:
    if not isinstance(error, Error):
        return _encode(("", text(f"{type(error).__name__}: {error}"), {}))
    state = {name: plain(text(held)) for name, held in vars(error).items() if not name.startswith("__")}
    return _encode((type(error).__name__, text(str(error)), state))


def _escaped(value: Any) -> Any:
    """The same value, with what is not valid Unicode in its texts escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)([_escaped(each) for each in value])
    if isinstance(value, Mapping):
        return {_escaped(name): _escaped(each) for name, each in value.items()}
    return value


def decode_error(body: bytes) -> BaseException:
    name, message, state = _decode_plain(body)
    kind = _error_types().get(name)
    if kind is None:
        return RemoteFailure(message)
    error = kind.__new__(kind)  # the constructors differ, and compute what is in the state already
    Exception.__init__(error, message)
    vars(error).update(state)
    return error


# -- notices


def encode_notices(published: list[Notice]) -> bytes:
    """The notices of a commit."""
    return _encode([(notice.log, *_notice(notice.item)) for notice in published])


def _notice(item: Any) -> tuple[str, bytes]:
    return ("", b"") if item is None else (type(item).__name__, _encode(item))


def decode_notices(body: bytes) -> list[Notice]:
    """The notices of a commit; those that this version does not know are left out."""
    found: list[Notice] = []
    for log, tag, item in _decoder(list[tuple[int, str, bytes]])(body):
        if not tag:
            found.append(Notice(log, None))
        elif tag in NOTICES:
            kind: Any = NOTICES[tag]
            found.append(Notice(log, _decoder(kind)(item)))
    return found
