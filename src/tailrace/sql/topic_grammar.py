"""The grammar of statements about topics and consumer groups. Most clauses may come in any order."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from tailrace import limits
from tailrace.sql import statements as ast
from tailrace.sql.lexer import BYTES, NUMBER, PARAMETER, QUOTED, TEXT, WORD
from tailrace.sql.tokens import Location, Tokens

EVENTS: Final = ("INSERT", "UPDATE", "DELETE")
MODES: Final = ("key", "full", "diff")
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.S)
Readers = dict[str, tuple[str, Callable[[], Any]]]


def clauses(tokens: Tokens, readers: Readers) -> dict[str, Any]:
    """Clauses in any order, each at most once. `readers` maps a keyword to the field it fills and its reader."""
    given: dict[str, Any] = {}
    while not tokens.ends():
        token = tokens.next
        reader = readers.get(token.key)
        if reader is None:
            tokens.fail(*(key for key, (field, _) in readers.items() if field not in given), "the end of the statement")
        field, read = reader
        if field in given:
            raise tokens.error(f"{token.key} is given twice")
        tokens.take()
        given[field] = read()
    return given


def settings(tokens: Tokens, readers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """`(name = value, ...)`. `readers` maps the name of a setting to the reader of its value."""
    tokens.expect("(")
    given: dict[str, Any] = {}
    while True:
        token = tokens.next
        name = token.text.lower()
        if token.kind not in (WORD, QUOTED) or name not in readers:
            tokens.fail(*readers)
        if name in given:
            raise tokens.error(f"{name} is given twice")
        tokens.take()
        tokens.expect("=")
        given[name] = readers[name]()
        if not tokens.accept(","):
            break
    if tokens.next.key != ")":
        tokens.fail("','", "')'")
    tokens.take()
    return given


def _topic_settings(tokens: Tokens) -> ast.TopicSettings:
    def number(name: str) -> Callable[[], int | None]:
        return lambda: None if tokens.accept("NULL") else tokens.integer(name, 1, limits.POSITION_MAX)

    def text(name: str) -> Callable[[], str | None]:
        return lambda: None if tokens.accept("NULL") else tokens.name(name)

    given = settings(
        tokens,
        {
            "alias": text("alias"),
            "retention_seconds": number("retention_seconds"),
            "retention_max_bytes": number("retention_max_bytes"),
            "max_attempts": number("max_attempts"),
            "dead_letter": text("dead_letter"),
        },
    )
    return ast.TopicSettings(**given)


# -- topics


def create_topic(tokens: Tokens, location: Location) -> ast.Statement:
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the topic")
    given = clauses(
        tokens,
        {
            "PARTITIONS": (
                "partitions",
                lambda: tokens.integer("the number of partitions"),  # the command checks the range
            ),
            "WITH": ("settings", lambda: _topic_settings(tokens)),
        },
    )
    return ast.CreateTopicStatement(name=name, if_not_exists=fresh, **given, **location)


def drop_topic(tokens: Tokens, location: Location) -> ast.Statement:
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropTopicStatement(name=tokens.name("the name of the topic"), if_exists=quiet, **location)


def alter_topic(tokens: Tokens, location: Location) -> ast.Statement:
    name = tokens.name("the name of the topic")
    match tokens.one_of("ADD", "DROP", "SET"):
        case "ADD":
            replace = tokens.accept("OR", "REPLACE")
            tokens.expect("SOURCE")
            return _add_source(tokens, name, replace, location)
        case "DROP":
            tokens.expect("SOURCE")
            table = tokens.name("the name of the table")
            source = tokens.name("the name of the source") if tokens.accept("AS") else None
            events = _events(tokens) if tokens.accept("ON") else None
            return ast.DropSourceStatement(topic=name, table=table, name=source, events=events, **location)
    if tokens.accept("ALIAS"):
        alias = None if tokens.accept("NULL") else tokens.name("the alias")
        force = tokens.accept("FORCE")
        return ast.SetAliasStatement(name=name, alias=alias, force=force, **location)
    if tokens.accept("PARTITIONS"):
        return ast.AddPartitionsStatement(name=name, partitions=tokens.integer("the number of partitions"), **location)
    return ast.SetTopicStatement(name=name, settings=_topic_settings(tokens), **location)


def _events(tokens: Tokens) -> tuple[int, ...]:
    """One event, or several: `INSERT, UPDATE` or `INSERT OR UPDATE`."""
    found = [EVENTS.index(tokens.one_of(*EVENTS))]
    while tokens.accept(",") or tokens.accept("OR"):
        token = tokens.next
        found.append(EVENTS.index(tokens.one_of(*EVENTS)))
        if found[-1] in found[:-1]:
            raise tokens.error(f"{EVENTS[found[-1]]} is given twice", token)
    return tuple(found)


def _add_source(tokens: Tokens, topic: str, replace: bool, location: Location) -> ast.Statement:
    table = tokens.name("the name of the table")
    name = tokens.name("the name of the source") if tokens.accept("AS") else None
    if replace and name is None:
        tokens.fail("AS and the name of the source that is replaced")
    tokens.expect("ON")
    events = _events(tokens)

    def stops() -> bool:
        return tokens.sees("PARTITION", "BY") or tokens.sees("WITH", "(")

    def where() -> ast.Expression:
        return _unbound(tokens, lambda: tokens.span("a condition", stops))

    def partition_by() -> ast.Expression:
        tokens.expect("BY")
        return _unbound(tokens, lambda: tokens.bracketed("an expression"))

    def mode() -> int:
        token = tokens.next
        name = tokens.word_or_string("the payload").lower()
        if name not in MODES:
            raise tokens.error("the payload is 'key', 'full' or 'diff'", token)
        return MODES.index(name)

    given = clauses(
        tokens,
        {
            "WHERE": ("where", where),
            "PARTITION": ("partition_by", partition_by),
            "WITH": ("settings", lambda: settings(tokens, {"payload": mode, "backfill": lambda: _truth(tokens)})),
        },
    )
    chosen = given.pop("settings", {})
    return ast.AddSourceStatement(
        topic=topic, table=table, events=events, name=name, replace=replace, mode=chosen.get("payload", 0),
        backfill=chosen.get("backfill", False), **given, **location,
    )  # fmt: skip


def _truth(tokens: Tokens) -> bool:
    return tokens.one_of("TRUE", "FALSE") == "TRUE"


def _unbound(tokens: Tokens, read: Callable[[], ast.Expression]) -> ast.Expression:
    """An expression that is stored as text and therefore cannot have parameters."""
    token = tokens.next
    expression = read()
    if expression.params:
        raise tokens.error("a source is stored as text and cannot have parameters; write the values", token)
    return expression


def clear_topic(tokens: Tokens, location: Location) -> ast.Statement:
    return ast.ClearTopicStatement(name=tokens.name("the name of the topic"), **location)


# -- messages


def publish(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("TO")
    topic = tokens.name("the name of the topic")

    def producer() -> ast.ProducerClause:
        name = tokens.string("the producer")
        tokens.expect("EPOCH")
        epoch = tokens.integer("the epoch", 0, limits.PRODUCER_NUMBER_MAX)
        tokens.expect("SEQUENCE")
        return ast.ProducerClause(name, epoch, tokens.integer("the sequence", 0, limits.PRODUCER_NUMBER_MAX))

    given = clauses(
        tokens,
        {
            "PARTITION": ("partition", lambda: tokens.integer("the partition")),
            "KEY": ("key", lambda: _payload(tokens, "the key")),
            "PRODUCER": ("producer", producer),
            "VALUES": ("payloads", lambda: _payloads(tokens)),
        },
    )
    if "payloads" not in given:
        tokens.fail("VALUES")
    return ast.PublishStatement(topic=topic, **given, **location)


def _payloads(tokens: Tokens) -> tuple[bytes, ...]:
    payloads: list[bytes] = []
    while True:
        tokens.expect("(")
        payloads.append(_payload(tokens, "the payload"))
        tokens.expect(")")
        if len(payloads) > limits.PUBLISH_MESSAGES_MAX:
            raise tokens.error(
                f"one PUBLISH can have at most {limits.PUBLISH_MESSAGES_MAX} messages; send several statements"
            )
        if not tokens.accept(","):
            return tuple(payloads)


def _payload(tokens: Tokens, what: str) -> bytes:
    token = tokens.next
    if token.kind == TEXT:
        return _encoded(tokens, what, tokens.take().text)
    if token.kind == BYTES:
        return bytes.fromhex(tokens.take().text)
    if token.kind == PARAMETER:
        given = tokens.parameter()
        if isinstance(given, bytes):
            return given
        if isinstance(given, str):
            return _encoded(tokens, what, given)
        raise tokens.error(f"{what} must be a text or bytes; encode other values, for example as JSON", token)
    raise tokens.expected(f"{what} as a text in single quotes, or a parameter")


def _encoded(tokens: Tokens, what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise tokens.error(f"{what} contains an unpaired surrogate, which UTF-8 cannot encode") from None


def _start(tokens: Tokens) -> ast.StartClause:
    if tokens.accept("EARLIEST"):
        return ast.StartClause("earliest")
    if tokens.accept("LATEST"):
        return ast.StartClause("latest")
    if tokens.accept("OFFSET") or tokens.next.kind in (NUMBER, PARAMETER):
        return ast.StartClause("offset", tokens.integer("the offset", 0, limits.POSITION_MAX))
    raise tokens.expected("LATEST", "EARLIEST", "OFFSET", "an offset")


def _visibility_ms(tokens: Tokens) -> int:
    return tokens.seconds_ms("the visibility", limits.VISIBILITY_MS_MIN, limits.VISIBILITY_MS_MAX)


def consume(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("FROM")
    topic = tokens.name("the name of the topic")

    def partition() -> int | None:
        return None if tokens.accept("ANY") else tokens.integer("the partition (or ANY)")

    given = clauses(
        tokens,
        {
            "GROUP": ("group", lambda: tokens.name("the group")),
            "PARTITION": ("partition", partition),
            "FROM": ("start", lambda: _start(tokens)),
            "LIMIT": ("limit", lambda: tokens.integer("the limit", 1, limits.CONSUME_MESSAGES_MAX)),
            "CONSUMER": ("consumer", lambda: tokens.name("the consumer")),
            "VISIBILITY": ("visibility_ms", lambda: _visibility_ms(tokens)),
        },
    )
    if "group" not in given:
        for field, clause in (("consumer", "CONSUMER"), ("visibility_ms", "VISIBILITY")):
            if field in given:
                raise tokens.error(f"{clause} requires GROUP: without a group, messages are not leased")
        if given.get("partition", 0) is None:
            raise tokens.error("PARTITION ANY requires GROUP; without a group, write the number of a partition")
    return ast.ConsumeStatement(topic=topic, **given, **location)


def _lease(
    tokens: Tokens, more: Readers, needed: str, kind: type[ast.LeaseStatement], location: Location
) -> ast.LeaseStatement:
    """ACK, NACK and EXTEND: their common clauses, and `more` of which `needed` is required."""
    topic = tokens.name("the name of the topic")
    given = clauses(
        tokens,
        {
            "GROUP": ("group", lambda: tokens.name("the group")),
            "PARTITION": ("partition", lambda: tokens.integer("the partition")),
            "CONSUMER": ("consumer", lambda: tokens.name("the consumer")),
            "LEASE": ("lease", lambda: tokens.string("the lease")),
            **more,
        },
    )
    if "group" not in given:
        tokens.fail("GROUP")
    if needed and more[needed][0] not in given:
        tokens.fail(needed)
    given |= given.pop("range", {})
    return kind(topic=topic, **given, **location)


def ack(tokens: Tokens, location: Location) -> ast.Statement:
    def upto() -> int:
        tokens.expect("OFFSET")
        return tokens.integer("the offset", 0, limits.POSITION_MAX)

    def offsets() -> tuple[int, ...]:
        tokens.expect("(")
        found = [tokens.integer("an offset", 0, limits.POSITION_MAX)]
        while tokens.accept(","):
            if len(found) >= limits.CONSUME_MESSAGES_MAX:
                raise tokens.error(f"an ACK can have at most {limits.CONSUME_MESSAGES_MAX} offsets")
            found.append(tokens.integer("an offset", 0, limits.POSITION_MAX))
        tokens.expect(")")
        return tuple(found)

    readers: Readers = {"UPTO": ("upto", upto), "OFFSETS": ("offsets", offsets)}
    statement = _lease(tokens, readers, "", ast.AckStatement, location)
    assert isinstance(statement, ast.AckStatement)
    if (statement.upto is None) == (not statement.offsets):
        if statement.upto is None:
            tokens.fail("UPTO", "OFFSETS")
        raise tokens.error("an ACK has UPTO OFFSET or OFFSETS, not both")
    return statement


def nack(tokens: Tokens, location: Location) -> ast.Statement:
    def some() -> dict[str, int]:
        token = tokens.next
        first = tokens.integer("the offset", 0, limits.POSITION_MAX)
        upto = tokens.integer("the last offset", 0, limits.POSITION_MAX) if tokens.accept("TO") else first
        if upto < first:
            raise tokens.error(f"{first} TO {upto} is not a range of offsets; write the lower offset first", token)
        return {"first": first, "upto": upto}

    more: Readers = {
        "OFFSET": ("range", some),
        "DELAY": ("delay_ms", lambda: tokens.seconds_ms("the delay", 0, limits.VISIBILITY_MS_MAX)),
    }
    return _lease(tokens, more, "", ast.NackStatement, location)


def extend(tokens: Tokens, location: Location) -> ast.Statement:
    more: Readers = {"VISIBILITY": ("visibility_ms", lambda: _visibility_ms(tokens))}
    return _lease(tokens, more, "VISIBILITY", ast.ExtendStatement, location)


# -- groups


def reset_group(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("CONSUMER", "GROUP")
    group = tokens.name("the group")
    tokens.expect("ON")
    topic = tokens.name("the name of the topic")
    partition = tokens.integer("the partition") if tokens.accept("PARTITION") else None
    tokens.expect("TO")
    if tokens.accept("TIMESTAMP"):
        to = ast.StartClause("timestamp", _moment_ms(tokens))
    elif tokens.next.key in ("EARLIEST", "LATEST", "OFFSET"):
        to = _start(tokens)
    else:
        tokens.fail("EARLIEST", "LATEST", "OFFSET", "TIMESTAMP")
    return ast.ResetGroupStatement(topic=topic, group=group, partition=partition, to=to, **location)


def _moment_ms(tokens: Tokens) -> int:
    """A time in ISO 8601 (UTC if it has no offset), or in milliseconds since 1970."""
    token = tokens.next
    if token.kind == NUMBER or (token.kind == PARAMETER and _is_number(tokens)):
        return tokens.integer("the time in milliseconds since 1970", 0, limits.POSITION_MAX)
    text = tokens.string("the time, as in '2026-01-28T12:00:00Z',").strip()
    try:
        if not _TIMESTAMP.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        since_ms = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise tokens.error(f"{text[:40]!r} is not a time; write it as in '2026-01-28T12:00:00Z'", token) from None
    return max(0, since_ms)


def _is_number(tokens: Tokens) -> bool:
    given = tokens.peek_parameter()
    return isinstance(given, int) and not isinstance(given, bool)


def drop_group(tokens: Tokens, location: Location) -> ast.Statement:
    group = tokens.name("the group")
    tokens.expect("ON")
    return ast.DropGroupStatement(topic=tokens.name("the name of the topic"), group=group, **location)
