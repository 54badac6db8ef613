"""Commands, results, errors and notices are the same after a journey to another process."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace.bus import asking, messages
from tailrace.command import Command
from tailrace.errors import (
    ConditionFailed,
    Error,
    Invalid,
    LoginThrottled,
    SequenceGap,
    TransactionCanceled,
    Unavailable,
)
from tailrace.log.entry import Log, Segment
from tailrace.log.notices import CLOSED, Advanced
from tailrace.log.tail import HOUSEKEEPING
from tailrace.scalar import ExpressionError
from tailrace.sql.commands import DeleteRows, RowExpression, UpdateRows
from tailrace.storage.notice import Notice
from tailrace.streams.commands import Append
from tailrace.tables import expression, legacy, partiql, sources
from tailrace.tables.binding import Placeholders
from tailrace.tables.commands import BatchWrite, CheckItem, DeleteItem, PutItem, TransactWrite, UpdateItem
from tailrace.tables.partiql_commands import DeleteWhere, InsertItem, ItemWhere, UpdateWhere
from tailrace.tables.partiql_syntax import statement as parsed


def journey(command: Any) -> Any:
    return messages.decode_command(*messages.encode_command(command))


def all_commands() -> Iterator[type[Command[Any]]]:
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if not module.name.startswith(("tailrace.spark", "tailrace.cli.__main__")):
            importlib.import_module(module.name)
    todo = list(Command.__subclasses__())
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__.startswith("tailrace."):
            yield kind


def test_every_command_has_a_tag() -> None:
    found = {kind.__name__: kind for kind in all_commands()}
    assert len(found) > 100
    assert {tag: kind for tag, kind in found.items() if messages.COMMANDS.get(tag) is not kind} == {}


@pytest.mark.parametrize("tag", sorted(messages.COMMANDS))
def test_fields_and_results_can_be_read(tag: str) -> None:
    """A type that MessagePack cannot bring back fails here, before it fails in a worker."""
    kind = messages.COMMANDS[tag]
    if kind.run is Command.run and kind.__subclasses__():
        return  # a base class
    if kind not in messages.NESTED:
        messages._decoder(kind)
    messages._decoder(messages.result_type(kind))


def test_every_question_can_be_read() -> None:
    for kind, answer in asking.QUESTIONS.values():
        msgspec.msgpack.Decoder(kind)
        msgspec.msgpack.Decoder(answer)


def test_a_plain_command() -> None:
    append = Append("a/b", b"\x00\xff", "text/plain", close=True)
    assert journey(append) == append


def test_a_condition_is_compiled_again() -> None:
    given = Placeholders({"#n": "name"}, {":v": {"S": "x"}, ":b": {"B": b"\xff"}})
    condition = expression.condition("#n = :v AND bits <> :b", given)
    there = journey(PutItem("t", {"id": {"N": "1"}, "b": {"B": b"\x00"}}, 4, condition=condition))
    assert there.item == {"id": {"N": "1"}, "b": {"B": b"\x00"}}
    assert there.condition is not condition
    assert there.condition.names == condition.names
    assert there.condition.test({"name": {"S": "x"}, "bits": {"B": b"a"}})
    assert not there.condition.test({"name": {"S": "y"}})
    assert not there.condition.test({"name": {"S": "x"}, "bits": {"B": b"\xff"}})


def test_an_update_is_compiled_again() -> None:
    update = expression.update("SET n = n + :one REMOVE gone", Placeholders(None, {":one": {"N": "1"}}))
    there = journey(UpdateItem("t", {"id": {"S": "a"}}, update))
    after = there.update.apply({"id": {"S": "a"}, "n": {"N": "4"}, "gone": {"S": "x"}}, there.key)
    assert after.item == {"id": {"S": "a"}, "n": {"N": "5"}}


def test_legacy_parameters_are_compiled_again() -> None:
    condition = legacy.expected({"a": {"Value": {"N": "1"}}, "b": {"Exists": False}}, "OR")
    update = legacy.attribute_updates({"n": {"Action": "ADD", "Value": {"N": "2"}}, "old": {"Action": "DELETE"}})
    there = journey(UpdateItem("t", {"id": {"S": "a"}}, update, condition=condition))
    assert there.condition.test({"a": {"N": "1"}, "b": {"S": "x"}})
    assert not there.condition.test({"a": {"N": "2"}, "b": {"S": "x"}})
    assert there.update.types == update.types
    assert there.update.apply({"n": {"N": "1"}, "old": {"S": "x"}}, {}).item == {"n": {"N": "3"}}


def test_statements_are_compiled_again() -> None:
    text, given = "UPDATE things SET a = ? WHERE id = ? AND b = 2", [{"S": "new"}, {"S": "k"}]
    statement = parsed(text)
    bound = partiql.bound(statement, given)
    update = partiql.update(statement, bound)  # type: ignore[arg-type]
    update.source = (sources.STATEMENT, text, given)
    where = ItemWhere(statement, bound, None, (text, given, None))  # type: ignore[arg-type]
    there = journey(UpdateWhere("t", {}, update, where=where))
    assert there.update.apply({"id": {"S": "k"}}, {}).item == {"id": {"S": "k"}, "a": {"S": "new"}}
    assert there.where.source == [text, given, None] or there.where.source == (text, given, None)


def test_nested_commands_keep_their_classes() -> None:
    deleting = parsed("DELETE FROM things WHERE id = ?")
    bound = partiql.bound(deleting, [{"S": "k"}])
    where = ItemWhere(deleting, bound, None, ("DELETE FROM things WHERE id = ?", [{"S": "k"}], None))  # type: ignore[arg-type]
    condition = expression.condition("attribute_exists(id)", Placeholders())
    there = journey(
        TransactWrite(
            (
                InsertItem("t", {"id": {"S": "a"}}, 3),
                DeleteWhere("t", {}, where=where),
                CheckItem("t", {"id": {"S": "c"}}, condition=condition),
            ),
            "token",
            b"\x01digest",
        )
    )
    assert [type(action) for action in there.actions] == [InsertItem, DeleteWhere, CheckItem]
    assert (there.token, there.digest) == ("token", b"\x01digest")
    batch = journey(
        BatchWrite((PutItem("t", {"id": {"S": "a"}}, 3), DeleteItem("t", {"id": {"S": "b"}})), atomic=False)
    )
    assert [type(write) for write in batch.writes] == [PutItem, DeleteItem]
    assert not batch.atomic


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("n + ?", (Decimal("1.5"),), Decimal("3.5")),
        ("n + ?", (2**70,), 2**70 + 2),
        ("coalesce(missing, ?)", (b"\xff",), b"\xff"),
    ],
)
def test_sql_expressions_keep_their_parameters(text: str, params: tuple[Any, ...], expected: Any) -> None:
    class Anything:
        expression_kinds = None
        keys = ("id",)

    there = journey(
        UpdateRows(
            "t", "uuid", ({"id": {"S": "a"}},), (RowExpression("n = ?", (2,)),),
            sets=(("c", RowExpression(text, params)), ("d", RowExpression("?", (Decimal("0.1"),)))),
        )
    )  # fmt: skip
    row: Any = {"id": {"S": "a"}, "n": {"N": "2"}}
    condition = there.where[0]
    assert condition.condition(Anything()).true(row, None, condition.params) is True
    found, constant = (each.value(Anything()).of(row, None, each.params) for _, each in there.sets)
    assert found == expected and type(found) is type(expected)
    assert constant == Decimal("0.1")


@pytest.mark.parametrize(
    "error",
    [
        Invalid("no", code="X", facts={"a": 1, "d": Decimal("1.50"), "t": (1, "b")}),
        SequenceGap(expected=4, received=7),
        LoginThrottled(12.5),
        ConditionFailed({"id": {"B": b"\xff"}}),
        TransactionCanceled([("None", None, None), ("ConditionalCheckFailed", "m", {"id": {"S": "a"}})]),
        ExpressionError("bad", line=3, column=4),
        Unavailable("later", code="QUEUE_FULL"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors(error: Error) -> None:
    there = messages.decode_error(messages.encode_error(error))
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)


def test_a_bug_stays_a_bug() -> None:
    there = messages.decode_error(messages.encode_error(KeyError("x")))
    assert isinstance(there, messages.RemoteFailure)
    assert "KeyError" in str(there)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Invalid("a \ud800", code="X", facts={"\ud800": ["\udfff"]}), Invalid, r"a \ud800"),
        (ConditionFailed({"id": {"S": "\ud800"}}), ConditionFailed, ""),
        (KeyError("\ud800"), messages.RemoteFailure, r"KeyError: '\ud800'"),
        (Exception("\ud800"), messages.RemoteFailure, r"Exception: \ud800"),
        (Invalid("no", facts={"value": object()}), messages.RemoteFailure, "Invalid: Invalid('no')"),
    ],
    ids=["text", "attribute", "bug", "text of a bug", "unknown type"],
)
def test_errors_that_cannot_be_encoded_as_they_are(error: Exception, kind: type[Exception], text: str) -> None:
    there = messages.decode_error(messages.encode_error(error))
    assert type(there) is kind
    assert text in str(there)
    if isinstance(error, Error) and isinstance(there, Error):
        assert there.code == error.code
        assert vars(there).keys() == vars(error).keys()


def test_notices() -> None:
    segment = Segment(7, 0, 3, 1_700_000_000_000, b"abc", None)
    sent = [Notice(HOUSEKEEPING, None), Notice(7, CLOSED)]
    log = Log(**{field.name: _any(field.type) for field in msgspec.structs.fields(Log)})
    sent.append(Notice(7, Advanced(log, segment)))
    assert messages.decode_notices(messages.encode_notices(sent)) == sent


def _any(kind: Any) -> Any:
    return kind() if isinstance(kind, type) else None


def test_what_is_not_known_here() -> None:
    with pytest.raises(Invalid, match="there is no command 'Levitate'") as refused:
        messages.decode_command("Levitate", b"\x80")
    assert refused.value.code == "UNKNOWN_COMMAND"
    with pytest.raises(Invalid, match="not valid UTF-8") as refused:
        messages.encode_command(Append("\ud800", b"", "text/plain"))
    assert refused.value.code == messages.UNSENDABLE


def test_values_that_cannot_be_sent() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value, why in ((deep, "nested too deeply"), ({1j: 1}, "complex")):
        with pytest.raises(Invalid, match=f"DeleteRows cannot be sent to the writer: .*{why}") as refused:
            messages.encode_command(DeleteRows("t", uuid="u", keys=(), where=(RowExpression("x = ?", (value,)),)))
        assert refused.value.code == messages.UNSENDABLE
