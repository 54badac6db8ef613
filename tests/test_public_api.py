"""The public surface: what `import tailrace` gives, with which signatures, typed, and of which version."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib import resources
from pathlib import Path

import tailrace
from tailrace.database import Database
from tailrace.embedded import TableOperations

ROOT = Path(__file__).resolve().parents[1]


def test_what_the_package_gives() -> None:
    tables = ["AsyncTable", "Change", "Check", "Delete", "Get", "Index", "Put", "Table", "Update"]
    sort_conditions = ["begins_with", "between", "eq", "ge", "gt", "le", "lt"]
    topics = ["Consumer", "Message", "Outgoing", "Producer"]
    assert sorted(tailrace.__all__) == sorted(["Database", "open", *tables, *sort_conditions, *topics])
    assert tailrace.Database is Database
    for name in tailrace.__all__:
        assert getattr(tailrace, name).__doc__


def test_open() -> None:
    assert str(inspect.signature(tailrace.open)) == "(path: 'str | os.PathLike[str]', **options: 'Any') -> 'Database'"


def test_the_methods_of_a_database() -> None:
    public = {name for name, value in vars(Database).items() if not name.startswith("_")}
    assert public == {
        "execute", "aexecute", "sql", "stopped", "attach", "aclose", "close", "sweep", "trouble", "waiting",
    }  # fmt: skip
    for_tables = {name for name in vars(TableOperations) if not name.startswith("_")} - {"execute", "aexecute"}
    made = {"create_table", "table", "tables", "drop_table", "batch_write", "transact_write", "transact_get"}
    assert for_tables == made | {"aio", "followers"}
    assert {"__enter__", "__exit__"} <= vars(Database).keys()
    signatures = {name: str(inspect.signature(getattr(Database, name))) for name in ("execute", "aexecute", "close")}
    assert signatures["execute"].startswith("(self, command: 'Command[T] | Query[T]', principal: 'Principal' = ")
    assert signatures["execute"].endswith(" -> 'T'")
    assert signatures["aexecute"].endswith(" -> 'Awaitable[T]'")
    assert signatures["close"] == "(self) -> 'None'"
    made = inspect.signature(Database)
    assert list(made.parameters) == ["engine", "clock", "housekeeping_s"]
    assert all(made.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in ("clock", "housekeeping_s"))


def test_the_example_in_the_docstring_works(tmp_path: Path) -> None:
    import contextlib
    import doctest

    parsed = doctest.DocTestParser().get_doctest(tailrace.open.__doc__ or "", {}, "open", None, None)
    assert len(parsed.examples) >= 4
    with contextlib.chdir(tmp_path):
        results = doctest.DocTestRunner().run(parsed, clear_globs=False)
        parsed.globs["db"].close()
    assert results.failed == 0


def test_types_are_published() -> None:
    assert (resources.files("tailrace") / "py.typed").is_file()


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tailrace.__version__ == project["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", tailrace.__version__)


def test_nothing_heavy_comes_with_the_import() -> None:
    """Embedding the database must not pull in the server."""
    import subprocess
    import sys

    heavy = ("uvloop", "httptools", "httpx", "click", "rich")
    code = f"import sys, tailrace; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_module_says_what_it_is_for() -> None:
    for path in sorted((ROOT / "src" / "tailrace").rglob("*.py")):
        text = path.read_text()
        assert not text or text.startswith('"""'), f"{path.relative_to(ROOT)} does not open with what it is for"
