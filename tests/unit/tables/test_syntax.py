from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.tables import reserved, syntax
from tailrace.tables.syntax import (
    Action,
    Call,
    Compare,
    DocumentPath,
    Either,
    Every,
    InvalidExpression,
    Not,
    ValuePlaceholder,
)


def name(text: str) -> DocumentPath:
    return DocumentPath((text,), plain=True)


def less(left: str, right: str) -> Compare:
    return Compare("<", (name(left), name(right)))


def refused(parse: object, text: str) -> str:
    with pytest.raises(InvalidExpression) as raised:
        parse(text)  # type: ignore[operator]
    return str(raised.value)


class TestConditions:
    def test_not_binds_before_and_before_or(self) -> None:
        tree = syntax.condition("a < b or NOT b < c aNd c < d")
        assert tree == Either((less("a", "b"), Every((Not(less("b", "c")), less("c", "d")))))

    def test_parentheses_group(self) -> None:
        tree = syntax.condition("(a < b OR b < c) AND NOT (c < d)")
        assert tree == Every((Either((less("a", "b"), less("b", "c"))), Not(less("c", "d"))))

    def test_between_takes_its_own_and(self) -> None:
        tree = syntax.condition("a BETWEEN :l AND :h AND b < c")
        assert tree == Every(
            (Compare("BETWEEN", (name("a"), ValuePlaceholder(":l"), ValuePlaceholder(":h"))), less("b", "c"))
        )

    def test_operands(self) -> None:
        tree = syntax.condition("size (a.#b[3]) = :v")
        assert tree == Compare(
            "=", (Call("size", (DocumentPath(("a", "#b", 3), plain=False),)), ValuePlaceholder(":v"))
        )

    @pytest.mark.parametrize("text", ["(a) < (b)", "((a) < b)", "(a < (b))"])
    def test_operands_and_conditions_may_be_in_parentheses(self, text: str) -> None:
        assert syntax.condition(text) == less("a", "b")

    def test_a_path_in_parentheses_goes_on(self) -> None:
        assert syntax.condition("(a.b).c < d") == Compare("<", (DocumentPath(("a", "b", "c"), plain=True), name("d")))

    @pytest.mark.parametrize(
        ("text", "token", "near"),
        [
            ("foo", "<EOF>", "foo"),
            (":v", "<EOF>", ":v"),
            ("(:v)", "<EOF>", ")"),
            ("a-b", "-", "a-b"),
            ("a = ", "<EOF>", "="),
            ("a != :b", "!", "a !="),
            ("a > 4", "4", "> 4"),
            ("a IN ()", ")", "()"),
            ("a IN (b,)", ")", ",)"),
            ("a IN b", "b", "IN b"),
            ("a > between", "between", "> between"),
            ("_a = b", "_", "_a"),
            ("a.b..c = d", ".", "..c"),
            ("a[#n] = b", "#n", "[#n]"),
            ("a[:n] = b", ":n", "[:n]"),
            ("a[1.5] = b", ".", "1.5"),
            ("a = :b.c", ".", ":b.c"),
            ("(size(a)).b > a", ".", ").b"),
            ("size(a)[0] > a", "[", ")[0"),
            ("a = b)", ")", "b)"),
            ("(a = b", "<EOF>", "b"),
            ("(a) and b = c", "and", ") and b"),
            ("attribute_exists(", "<EOF>", "("),
            ('a = "b"', '"', '= "b'),
            ("#$ = a", "#", "#$"),
            (": = a", ":", ": ="),
            ("ü = a", "ü", "ü ="),
            ("a = b c", "c", "b c"),
            (" \t ", "<EOF>", ""),
        ],
    )
    def test_syntax_errors(self, text: str, token: str, near: str) -> None:
        assert refused(syntax.condition, text) == f'Syntax error; token: "{token}", near: "{near}"'

    @pytest.mark.parametrize(
        "text",
        [
            "((a = b))",
            "a = ((b))",
            "((a)) = b",
            "a = b AND ((b = c AND c = d))",
            "NOT ((a = b))",
            "contains(a, ((b)))",
            "a IN (b, ((c)))",
            "((a = b AND (c = d)))",
            "x = nonsense(((y)))",
        ],
    )
    def test_redundant_parentheses(self, text: str) -> None:
        assert refused(syntax.condition, text) == "The expression has redundant parentheses;"

    @pytest.mark.parametrize("text", ["((a = b) AND (c = d))", "((a = b) OR c = d)", "(NOT (a = b))", "((a) = (b))"])
    def test_parentheses_that_are_not_redundant(self, text: str) -> None:
        syntax.condition(text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("dog(a) = :b", "Invalid function name; function: dog"),
            ("Size(a) = :b", "Invalid function name; function: Size"),
            (
                "if_not_exists(a, b) = :c",
                "The function is not allowed in a condition expression; function: if_not_exists",
            ),
            ("list_append(a, b) = :c", "The function is not allowed in a condition expression; function: list_append"),
            ("size(a)", "The function is not allowed to be used this way in an expression; function: size"),
            ("NOT size(a)", "The function is not allowed to be used this way in an expression; function: size"),
            (
                "contains(a, b) = c",
                "The function is not allowed to be used this way in an expression; function: contains",
            ),
            (
                "size(attribute_exists(a)) > b",
                "The function is not allowed to be used this way in an expression; function: attribute_exists",
            ),
            ("a = b AND Status = c", "Attribute name is a reserved keyword; reserved keyword: Status"),
            ("a.views = b", "Attribute name is a reserved keyword; reserved keyword: views"),
            ("a[2147483648] = b", "List index is not within the allowable range; index: [2147483648]"),
            ("", "The expression can not be empty;"),
            ("a" * 4097, "Expression size has exceeded the maximum allowed size; expression size: 4097"),
            ("ü" * 2049, "Expression size has exceeded the maximum allowed size; expression size: 4098"),
        ],
    )
    def test_what_the_text_alone_tells(self, text: str, message: str) -> None:
        assert refused(syntax.condition, text) == message

    def test_keywords_are_names_behind_a_placeholder(self) -> None:
        assert syntax.condition("#and = #or") == Compare(
            "=", (DocumentPath(("#and",), False), DocumentPath(("#or",), False))
        )


class TestBounds:
    """However deep a text nests, it gets an answer and not an exhausted stack."""

    def test_as_many_operators_as_there_may_be(self) -> None:
        deep = 149
        syntax.condition("a<b " + "or (a<b " * deep + ")" * deep)

    @pytest.mark.parametrize(
        "text", ["a<b " + "or (a<b " * 454 + ")" * 454, "not " * 1000 + "a<b", "a<b" + " or a<b" * 500]
    )
    def test_too_many_operators(self, text: str) -> None:
        assert refused(syntax.condition, text) == "The expression contains too many operators; operator count: 301"

    def test_parentheses_only(self) -> None:
        assert refused(syntax.condition, "(" * 2046 + "a<b" + ")" * 2046) == "The expression has redundant parentheses;"
        assert refused(syntax.condition, "(" * 4096) == 'Syntax error; token: "<EOF>", near: "("'
        assert refused(syntax.update, "SET a = " + "(" * 4000) == "The expression has redundant parentheses;"

    def test_calls(self) -> None:
        assert (
            refused(syntax.condition, "a < " + "f(" * 1355 + "b" + ")" * 1355) == "Invalid function name; function: f"
        )
        assert refused(syntax.condition, "a < " + "size(" * 680 + "b" + ")" * 680).startswith("Incorrect operand type")

    @given(st.text("()ab<=#:1,.[] NOTADRSEIF_\n", max_size=60))
    def test_any_text_is_parsed_or_refused(self, text: str) -> None:
        for parse in (syntax.condition, syntax.update, syntax.projection):
            try:
                parse(text)
            except InvalidExpression:
                continue


class TestUpdates:
    def test_sections(self) -> None:
        assert syntax.update("set a = :v, b.c = a remove d[0] ADD e :n delete f :s") == (
            Action("SET", name("a"), ValuePlaceholder(":v")),
            Action("SET", DocumentPath(("b", "c"), plain=True), name("a")),
            Action("REMOVE", DocumentPath(("d", 0), plain=True), None),
            Action("ADD", name("e"), ValuePlaceholder(":n")),
            Action("DELETE", name("f"), ValuePlaceholder(":s")),
        )

    @pytest.mark.parametrize(
        "text", ["SET a=b+c", "SET a = (b + c)", "SET a = (b)+(c)", "SET a = ((b) + (c))", "SET a = ((b) + c)"]
    )
    def test_sums(self, text: str) -> None:
        assert syntax.update(text) == (Action("SET", name("a"), Call("+", (name("b"), name("c")))),)

    @pytest.mark.parametrize(
        ("text", "token", "near"),
        [
            ("INVALID SYNTAX HERE", "INVALID", "INVALID SYNTAX"),
            ("SET _1 = :v", "_", "SET _1"),
            ("SET a", "<EOF>", "a"),
            ("SET a = :v,", "<EOF>", ","),
            ("SET a = b + c + d", "+", "c + d"),
            ("SET a = b * c", "*", "b * c"),
            ("SET a = set", "set", "= set"),
            ("SET :a = b", ":a", "SET :a ="),
            ("SET (a = b)", "(", "SET (a"),
            ("SET a = (b.c).d", ".", ").d"),
            ("SET a = if_not_exists(b, :c + :d)", "+", ":c + :d"),
            ("SET a[1] = 1", "1", "= 1"),
            ("REMOVE a = b", "=", "a = b"),
            ("REMOVE a b", "b", "a b"),
            ("ADD a b", "b", "a b"),
            ("DELETE a = :b", "=", "a = :b"),
            ("ADD hits : one", ":", "hits : one"),
        ],
    )
    def test_syntax_errors(self, text: str, token: str, near: str) -> None:
        assert refused(syntax.update, text) == f'Syntax error; token: "{token}", near: "{near}"'

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("SET a = :a SET b = :b", 'The "SET" section can only be used once in an update expression;'),
            ("REMOVE a ADD b :b REMOVE c", 'The "REMOVE" section can only be used once in an update expression;'),
            ("SET a = :a SET status = :b", "Attribute name is a reserved keyword; reserved keyword: status"),
            ("SET a = dog(b)", "Invalid function name; function: dog"),
            ("SET a = size(b)", "The function is not allowed in an update expression; function: size"),
            (
                "SET a = list_append(list_append(b, c), d)",
                "The function is not allowed to be used this way in an expression; function: list_append",
            ),
            ("SET a = ((b))", "The expression has redundant parentheses;"),
            ("SET a = ((b + c))", "The expression has redundant parentheses;"),
        ],
    )
    def test_what_the_text_alone_tells(self, text: str, message: str) -> None:
        assert refused(syntax.update, text) == message


class TestProjections:
    def test_paths(self) -> None:
        assert syntax.projection(" a , b.c[1] ") == (name("a"), DocumentPath(("b", "c", 1), plain=True))

    @pytest.mark.parametrize(
        ("text", "token", "near"),
        [
            ("!!! INVALID !!!", "!", "!!"),
            ("a,", "<EOF>", ","),
            ("a,,b", ",", ",,b"),
            ("(a)", "(", "(a"),
            (":a", ":a", ":a"),
            ("a[-1]", "-", "[-1"),
            ("a[]", "]", "[]"),
            ("f(a)", "(", "f(a"),
        ],
    )
    def test_syntax_errors(self, text: str, token: str, near: str) -> None:
        assert refused(syntax.projection, text) == f'Syntax error; token: "{token}", near: "{near}"'


def test_reserved_words() -> None:
    assert len(reserved.WORDS) == 573
    assert reserved.is_reserved("Status")
    assert not reserved.is_reserved("pk")


def test_a_text_is_parsed_once() -> None:
    assert syntax.condition("once = :v") is syntax.condition("once = :v")
