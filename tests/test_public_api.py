"""The public surface: what `import tailrace` gives, with which signatures, typed, and of which version."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import tailrace
from tailrace.database import Database
from tailrace.embedded import EmbeddedOperations
from tailrace.embedded.sync.tables import TableOperations
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


def test_what_the_package_gives() -> None:
    tables = ["AsyncTable", "Change", "Check", "Delete", "Get", "Index", "Put", "Table", "Update"]
    sort_conditions = ["begins_with", "between", "eq", "ge", "gt", "le", "lt"]
    topics = ["AsyncConsumer", "AsyncProducer", "Consumer", "Message", "Outgoing", "Producer"]
    streams = ["AsyncStream", "Stream"]
    transactions = ["AsyncTransaction", "Transaction"]
    names = ["Database", "open", *tables, *sort_conditions, *topics, *streams, *transactions]
    assert sorted(tailrace.__all__) == sorted(names)
    assert tailrace.Database is Database
    for name in tailrace.__all__:
        assert getattr(tailrace, name).__doc__


def test_open() -> None:
    assert str(inspect.signature(tailrace.open)) == (
        "(path: 'str | os.PathLike[str]', *, cold: 'str | ColdStorage | None' = None, accept_loss: 'bool' = False, "
        "**options: 'Any') -> 'Database'"
    )


def test_the_methods_of_a_database() -> None:
    public = {name for name, value in vars(Database).items() if not name.startswith("_")}
    assert public == {
        "execute", "aexecute", "submit", "add_followers", "sql", "stopped", "attach", "aclose", "close", "sweep",
        "trouble", "waiting", "identity", "verify", "backup", "blocking",
    }  # fmt: skip
    for_tables = {name for name in vars(TableOperations) if not name.startswith("_")}
    made = {"create_table", "table", "tables", "drop_table", "batch_write", "transact_write", "transact_get"}
    assert for_tables == made
    assert {name for name in vars(EmbeddedOperations) if not name.startswith("_")} == {"aio", "followers"}
    assert {"__enter__", "__exit__"} <= vars(Database).keys()
    signatures = {name: str(inspect.signature(getattr(Database, name))) for name in ("execute", "aexecute", "close")}
    assert signatures["execute"].startswith("(self, command: 'Command[T] | Query[T]', principal: 'Principal' = ")
    assert signatures["execute"].endswith(" -> 'T'")
    assert signatures["aexecute"].endswith(" -> 'Awaitable[T]'")
    assert signatures["close"] == "(self) -> 'None'"
    made = inspect.signature(Database)
    assert list(made.parameters) == ["engine", "clock", "housekeeping_s", "cold", "forwarder", "buckets"]
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


def loaded(code: str) -> set[str]:
    """The modules that are there after a new interpreter has run this."""
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_nothing_heavy_comes_with_the_database() -> None:
    """Embedding it must not pull in the server."""
    found = loaded("import tailrace; tailrace.open; tailrace.Put")
    assert "tailrace.database" in found
    assert not found & {"uvloop", "httptools", "httpx", "click", "rich"}


def test_the_database_is_imported_on_demand() -> None:
    assert not loaded("import tailrace") & {"tailrace.database", "tailrace.embedded", "sqlglot", "apsw", "msgspec"}
    for code in (
        "from tailrace import open, Put",
        "from tailrace import *; open, begins_with",
        "import tailrace; assert tailrace.Put is tailrace.Put and 'Put' in vars(tailrace)",
        "import tailrace; tailrace.errors.ConditionFailed; tailrace.Database",
    ):
        assert "tailrace.embedded" in loaded(code)


def test_what_it_lists_and_what_it_lacks() -> None:
    assert {*tailrace.__all__, "__version__", "errors"} <= set(dir(tailrace))
    with pytest.raises(AttributeError, match="module 'tailrace' has no attribute 'Putt'"):
        tailrace.Putt  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Putt'"):
        from tailrace import Putt  # noqa: F401


def test_every_module_says_what_it_is_for() -> None:
    for path in sorted((ROOT / "src" / "tailrace").rglob("*.py")):
        text = re.sub(r"^# Generated by .*\n", "", path.read_text())
        assert not text or text.startswith('"""'), f"{path.relative_to(ROOT)} does not open with what it is for"
