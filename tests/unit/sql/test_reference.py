"""The SQL reference against the parser: every grammar on the page parses in all its variants, every statement is on the
page, and the examples run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import limits
from tailrace.sql import column_grammar, lexer, parser, statements, table_grammar, tokens
from tailrace.sql.parser import parse
from tailrace.sql.session import Session

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
SAMPLES = {
    "topic": "app.new_messages", "table": "chat.messages", "group": "'ai-service'", "consumer": "'worker-1'",
    "partitions": "4", "partition": "2", "offset": "12345", "last offset": "12346", "number": "7", "seconds": "1.5",
    "time": "'2026-01-28T12:00:00Z'", "text": "'a text'",
    "settings": "alias = 'a.b', retention_seconds = 60, max_attempts = NULL",
    "condition": "is_visible = true AND NEW.channel_id = 42", "expression": "coalesce(user_id, 'x')", "column": "id",
    "another column": '"the body"', "type": "TEXT", "table settings": "stream = true, ttl = 'expires'",
    "columns": "id, body", "values": "'a', upper('b') || 'c'", "key": "id = 'a' AND day = 3",
    "query": "1, (2 + 3) AS n", "row condition": "id = 'a' OR day > 3 AND body IS NULL",
    "constant": "'none'", "constraint": "local",
    "returned": "*, upper(body) AS loud",
    "select": "SELECT 1 AS n",
    "events": "INSERT, UPDATE", "source settings": "payload = 'full', backfill = true", "alias": "app.old",
    "name": "found", "user": "bob", "password": "'a password'", "pattern": "'topics/app.*'",
}  # fmt: skip

Node = str | tuple[str, list["Node"]]  # a word, or ("all" | "maybe" | "one", parts)


def sections() -> dict[str, str]:
    """The text below each heading of the third level."""
    parts = re.split(r"^### (.+)$", PAGE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def grammars() -> list[tuple[str, str]]:
    blocks = [
        (title, line)
        for title, text in sections().items()
        for block in re.findall(r"^```text\n(.*?)^```$", text, flags=re.M | re.S)
        for line in block.splitlines()
    ]
    assert blocks
    return blocks


def titles() -> set[str]:
    found: set[str] = set()
    kinds = [statements.Statement]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.title:
            found.add(kind.title)
    return found


def read(words: list[str], end: str | None = None) -> list[Node]:
    """What the notation means; `words` is used up."""
    found: list[Node] = []
    choices: list[Node] = []
    while words:
        word = words.pop(0)
        if word == end:
            return [*choices, ("all", found)] if choices else found
        if word == "[":
            parts = read(words, "]")
            if parts == [",", "..."]:
                opens = max(at for at, part in enumerate(found) if part == "(") if found[-1] == ")" else -1
                parts = [",", *found[opens:]]
            found.append(("maybe", parts))
        elif word == "{":
            found.append(("one", read(words, "}")))
        elif word == "|":
            choices.append(("all", found))
            found = []
        else:
            found.append(word)
    assert end is None, f"{end} is missing"
    return found


def forks(node: Node) -> Iterator[tuple[int, int]]:
    """Every place where there is something to choose, and how much."""
    if isinstance(node, str):
        return
    kind, parts = node
    if kind != "all":
        yield id(node), 2 if kind == "maybe" else len(parts)
    for part in parts:
        yield from forks(part)


def written(node: Node, chosen: dict[int, int], otherwise: int) -> str:
    if isinstance(node, str):
        return SAMPLES[node[1:-1]] if node.startswith("<") else node
    kind, parts = node
    choice = chosen.get(id(node), otherwise)
    if kind == "one":
        parts = [parts[min(choice, len(parts) - 1)]]
    elif kind == "maybe" and not choice:
        parts = []
    return " ".join(written(part, chosen, otherwise) for part in parts)


def variants(grammar: str) -> set[str]:
    """The shortest and the longest sentence, and each choice with all others short and all others long."""
    words = re.findall(r"<[^>]+>|\.\.\.|'[^']*'|[\w.]+|\S", grammar)
    whole: Node = ("all", read(words))
    found = {written(whole, {}, 0), written(whole, {}, 1)}
    for fork, count in forks(whole):
        for choice in range(count):
            found |= {written(whole, {fork: choice}, otherwise) for otherwise in (0, 1)}
    return found


@pytest.mark.parametrize(("title", "grammar"), grammars(), ids=lambda text: text[:40])
def test_every_variant_of_a_grammar_parses(title: str, grammar: str) -> None:
    sentences = variants(grammar)
    for sentence in sentences:
        for text in (sentence, sentence.lower() if "'" not in sentence else sentence):
            (statement,) = parse(text)
            assert statement.title == title, text
    assert len(sentences) > 1 or not re.search(r"[\[{]", grammar)


def test_the_notation_is_understood() -> None:
    assert variants("A [B] { C | D E }") == {"A  C", "A B D E", "A B C", "A  D E"}
    assert "A ( 'topics/app.*' ) , ( 'topics/app.*' )" in variants("A (<pattern>) [, ...]")


def test_every_statement_is_on_the_page_and_nothing_else() -> None:
    assert set(sections()) == titles()


def test_every_word_that_begins_a_statement_is_on_the_page() -> None:
    assert not [word for word in parser.STARTS if not re.search(rf"\b{word}\b", PAGE)]


def test_the_limits_are_those_of_the_page() -> None:
    numbers = {
        lexer.TEXT_CHARACTERS_MAX, lexer.TOKENS_MAX, parser.STATEMENTS_MAX, parser.PARAMETERS_MAX, tokens.DEPTH_MAX,
        tokens.EXPRESSIONS_MAX, table_grammar.ROWS_MAX, column_grammar.COLUMNS_MAX, limits.PUBLISH_MESSAGES_MAX,
        limits.CONSUME_MESSAGES_MAX,
    }  # fmt: skip
    assert {f"{number:,}" for number in numbers} <= set(re.findall(r"[\d,]*\d", PAGE))


def test_the_types_are_those_of_the_page() -> None:
    assert {kind for kind in column_grammar.KINDS.values() if f"`{kind}`" not in PAGE} == set()


def test_the_examples_run(data_dir: Path) -> None:
    examples = re.findall(r"^```sql\n(.*?)^```$", PAGE, flags=re.M | re.S)
    assert len(examples) > 10
    with tailrace.open(data_dir) as db:
        session = Session(db.execute)
        for example in examples:
            assert session.run(example)
