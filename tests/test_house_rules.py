"""The rules of the house that a program can check. The rest is in CONTRIBUTING.md.

Lengths ratchet: what is over the limit today may be listed with its size, and may only shrink. The lists are
meant to be empty.
"""

from __future__ import annotations

import ast
import re
import stat
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tailrace"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 80
MODULES_ABOVE: dict[str, int] = {}  # path within the package -> lines
FUNCTIONS_ABOVE: dict[str, int] = {}  # path::function -> lines

EMPTY_WORDS = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
# Where nothing waits: these run inside a transaction or under a lock.
SYNCHRONOUS = {"access", "check", "clock", "command", "errors", "failpoints", "limits", "log", "metrics", "runner"}
SYNCHRONOUS |= {"storage", "streams"}

# With blanks for dots, so that this file passes its own test.
REGISTRIES = (
    "pypi org|pythonhosted org|npmjs org|npmjs com|crates io|golang org|maven org|maven apache org|deb debian org"
)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, node.lineno


def patterns_of(tree: ast.Module) -> Iterator[tuple[str | bytes, bool, int]]:
    """The regular expressions of a module: the text, whether it is verbose, and the line. A part that is known only at
    run time is left out."""
    values: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                values |= {target.id: node.value} if isinstance(target, ast.Name) else {}

    def text_of(node: ast.expr) -> str | bytes:
        match node:
            case ast.Constant(value=str() | bytes() as value):
                return value
            case ast.Name(id=name) if name in values:
                return text_of(values[name])
            case ast.FormattedValue(value=inner):
                return text_of(inner)
            case ast.BinOp(left=left, right=right):
                parts = [text_of(left), text_of(right)]
            case ast.JoinedStr(values=parts_of):
                parts = [text_of(part) for part in parts_of]
            case _:
                return ""
        kind: str | bytes = b"" if any(isinstance(part, bytes) for part in parts) else ""
        return kind.join(part for part in parts if part)  # type: ignore[arg-type]

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
            flags = " ".join(ast.unparse(argument) for argument in [*node.args[1:], *node.keywords])
            yield text_of(node.args[0]), bool(re.search(r"re\.(X|VERBOSE)\b", flags)), node.lineno


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef | ast.FunctionDef) else prefix
        yield from functions_of(node, inner)


@cache
def repository_files() -> list[Path]:
    """What belongs to the repository: all but what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        skipped = {"node_modules", "__pycache__", "data", "dist"}
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(part in skipped or part.startswith((".venv", ".make")) for part in path.relative_to(ROOT).parts)
        ]
    return [path for path in found if path.is_file()]


def text_of(path: Path) -> str | None:
    """The file's text; None where it is not text."""
    data = path.read_bytes()
    if b"\0" in data[:4096]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def test_the_package_was_found() -> None:
    assert len(MODULES) > 10


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), f"{name_of(path)} has no docstring: say what it is for"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_named_for_what_it_holds(path: Path) -> None:
    words = {word for part in Path(name_of(path)).with_suffix("").parts for word in part.split("_")}
    assert not words & EMPTY_WORDS, f"{name_of(path)}: name the thing, not its rank"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_fits_in_a_head(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    allowed = MODULES_ABOVE.get(name_of(path), MODULE_LINES_MAX)
    assert lines <= allowed, f"{name_of(path)} has {lines} lines, at most {allowed}: split it by what changes together"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for name, function in functions_of(tree_of(path)):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        key = f"{name_of(path)}::{name}"
        allowed = FUNCTIONS_ABOVE.get(key, FUNCTION_LINES_MAX)
        assert lines <= allowed, f"{key} has {lines} lines, at most {allowed}"


def test_the_ratchet_lists_hold_only_what_is_needed() -> None:
    for name, lines in MODULES_ABOVE.items():
        assert len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) == lines > MODULE_LINES_MAX, name
    sizes = {
        f"{name_of(path)}::{name}": (function.end_lineno or function.lineno) - function.lineno + 1
        for path in MODULES
        for name, function in functions_of(tree_of(path))
    }
    for name, lines in FUNCTIONS_ABOVE.items():
        assert sizes.get(name) == lines > FUNCTION_LINES_MAX, name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_waits_below_the_runner(path: Path) -> None:
    top = Path(name_of(path)).with_suffix("").parts[0]
    if top not in SYNCHRONOUS:
        return
    tree = tree_of(path)
    for module, line in imports_of(tree):
        assert module.partition(".")[0] not in ("asyncio", "uvloop"), f"{name_of(path)}:{line} imports {module}"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef), f"{name_of(path)}:{node.lineno} is async"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_command_line_prints(path: Path) -> None:
    if name_of(path).startswith("cli/"):
        return
    for node in ast.walk(tree_of(path)):
        printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        assert not printing, f"{name_of(path)}:{node.lineno} prints; use the log"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_pattern_depends_on_possessive_matching(path: Path) -> None:
    """Python 3.11 before 3.11.5, which some distributions ship, matches some possessive quantifiers and atomic groups
    wrongly. A pattern must be linear without them: what follows a repetition is never part of it, or nothing that
    follows can fail."""
    found = [
        f"{name_of(path)}:{line}: {pattern!r}"
        for pattern, verbose, line in patterns_of(tree_of(path))
        if possessive(pattern, verbose)
    ]
    assert not found, "write it without possessive quantifiers and atomic groups: " + ", ".join(found)


def possessive(pattern: str | bytes, verbose: bool = False) -> bool:
    """Whether a regular expression has a possessive quantifier or an atomic group."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    text = re.sub(r"\\.", "-", text, flags=re.DOTALL)  # escapes
    text = re.sub(r"\[\^?\]?[^\]]*\]", "-", text)  # sets of characters
    if verbose:
        text = re.sub(r"#.*", "", text)
    return re.search(r"[*+?}]\+|\(\?>", text) is not None


def test_possessive_matching_is_recognized() -> None:
    for pattern in (r"a++", r"(?:a|b)*+c", r"a?+", r"a{1,3}+", r"(?>a)", rb"[^\]+]*+", r"\++\d*+"):
        assert possessive(pattern), pattern
    for pattern in (r"a\++", r"[*+]+", r"[]+*+]", r"a+\+", r"(?:a)+", rb"[+-]?[0-9]+", r"\*\+"):
        assert not possessive(pattern), pattern
    tree = ast.parse("A: Final = rb'x*+'\nB = re.compile(rb'(?:' + A + rb')', re.X)\nC = re.compile(f'{D}b')")
    assert list(patterns_of(tree)) == [(b"(?:x*+)", True, 2), ("b", False, 3)]
    assert sum(1 for path in MODULES for _ in patterns_of(tree_of(path))) > 50


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_put_off(path: Path) -> None:
    found = re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text(encoding="utf-8"))
    assert found is None, f"{name_of(path)}: {found.group()} belongs in the tracker, or done"


def test_no_file_names_a_package_registry() -> None:
    """Packages are required by name: the registry is configured on each machine."""
    for path in repository_files():
        text = (text_of(path) or "").lower()
        named = [host for host in REGISTRIES.replace(" ", ".").split("|") if host in text]
        assert not named, f"{path.relative_to(ROOT)} names {named}"


def test_locks_carry_hashes_and_no_place() -> None:
    for path in repository_files():
        if path.name == "package-lock.json":
            text = path.read_text(encoding="utf-8")
            assert '"resolved"' not in text, f"{path.relative_to(ROOT)} says where packages come from; see its .npmrc"
            assert text.count('"node_modules/') == text.count('"integrity"'), f"{path.relative_to(ROOT)} lacks hashes"
        elif path.name.startswith("requirements") and path.suffix == ".lock":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^\s*(--(extra-)?index-url|--find-links|-f |-i )", text, re.M), path.name
            assert "://" not in text, path.name
            for requirement in re.split(r"\n(?=[a-z])", text.strip()):
                assert "--hash=sha256:" in requirement, f"{path.name}: {requirement.splitlines()[0]} has no hash"


def test_the_development_lock_holds_the_product_lock() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9._-]+==[^ ;\\]+)", (ROOT / name).read_text(encoding="utf-8"), re.M))

    assert pins("requirements.lock") <= pins("requirements-spark.lock") <= pins("requirements-dev.lock")


def test_text_files_are_tidy() -> None:
    for path in repository_files():
        text = text_of(path)
        if text is None or path.name in ("LICENSE", "package-lock.json"):
            continue
        where = path.relative_to(ROOT)
        assert "\r" not in text, f"{where} has carriage returns"
        assert not text or text.endswith("\n"), f"{where} does not end with a line end"
        assert not re.search(r"[ \t]+$", text, re.M), f"{where} has spaces at the end of a line"


def test_scripts_are_executable() -> None:
    for path in repository_files():
        text = text_of(path) or ""
        if text.startswith("#!"):
            assert path.stat().st_mode & stat.S_IXUSR, f"chmod +x {path.relative_to(ROOT)}"
