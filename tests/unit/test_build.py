"""The compiled build: its list of modules, what they may contain, and that it is the build under test."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

import pytest

from tailrace import build

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compiling  # noqa: E402

MODULES = compiling.modules()


def test_the_list_names_existing_modules_once() -> None:
    assert MODULES
    assert len(set(MODULES)) == len(MODULES)
    assert [each for each in MODULES if not (compiling.SOURCES / each).is_file()] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_module_has_no_structs(module: str) -> None:
    """mypyc drops the keywords of a class: a frozen struct would silently become a mutable one."""
    tree = ast.parse((compiling.SOURCES / module).read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    with_keywords = [node.name for node in classes if any(keyword.arg != "metaclass" for keyword in node.keywords)]
    structs = [node.name for node in classes if any(ast.unparse(base).endswith("Struct") for base in node.bases)]
    assert (with_keywords, structs) == ([], [])


@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_subclass_has_only_class_variables(module: str) -> None:
    """Other values in the body of a class are set when it is made, which a base that is not compiled does not do."""
    tree = ast.parse((compiling.SOURCES / module).read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    subclasses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) not in own for base in node.bases)
    ]
    assigned = [each for node in subclasses for each in node.body if isinstance(each, ast.Assign)]
    assert [ast.unparse(each) for each in assigned if ast.unparse(each.targets[0]) != "__slots__"] == []


# Calls that consume an iterable before they return: it makes no difference to them that mypyc passes a list.
CONSUMING = {
    "all",
    "any",
    "bytes",
    "dict",
    "extend",
    "frozenset",
    "join",
    "list",
    "max",
    "min",
    "next",
    "set",
    "sorted",
}
CONSUMING |= {"sum", "tuple", "update"}


@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_generator_expression_is_consumed_at_once(module: str) -> None:
    """mypyc makes a list of it, so a reader that stops early would have read everything."""
    tree = ast.parse((compiling.SOURCES / module).read_text())
    consumed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Starred)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CONSUMING:
            consumed |= {id(argument) for argument in node.args}
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.GeneratorExp)]
    assert [ast.unparse(node) for node in expressions if id(node) not in consumed] == []


def test_the_build_under_test_is_the_one_that_was_asked_for() -> None:
    wanted = os.environ.get("TAILRACE_TESTED_BUILD") == "compiled"
    assert build.compiled() == wanted
    kinds = {importlib.import_module(each[:-3].replace("/", ".")).__file__.rpartition(".")[2] for each in MODULES}
    assert kinds == ({"so"} if wanted else {"py"})
    assert build.describe().startswith("compiled" if wanted else "pure Python")


def test_a_change_of_a_source_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "tailrace"
    package.mkdir(parents=True)
    (package / "runner.py").write_text("a = 1\n")
    monkeypatch.setattr(compiling, "SOURCES", tmp_path / "src")
    before = compiling.tree()
    assert compiling.tree() == before
    (package / "runner.py").write_text("a = 2\n")
    assert compiling.tree() != before


def test_nothing_is_compiled_beside_the_sources() -> None:
    assert [*(ROOT / "src").rglob("*.so")] == []
