"""The documentation is complete and true, as far as a program can tell.

Every command, option, limit, setting, metric and failpoint has its place in docs/reference, and so has every
operation of the DynamoDB API with its parameters and every method of the Python API; every link leads somewhere. The
examples are run by `tests/examples`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest

import tailrace
from tailrace import auth, errors, failpoints, limits, metrics, tables
from tailrace.cli import cli
from tailrace.config import Config
from tailrace.embedded import AsyncOperations, TableInfo
from tailrace.http import dynamodb
from tailrace.http.dynamodb import errors as dynamodb_errors
from tailrace.http.dynamodb import render
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.dynamodb.shape import ApiShape, ListOf, MapOf, Structure
from tailrace.spark.jobs import settings
from tests.support.pages import FENCE, PAGES, ROOT, SESSIONS, marked, page_name

REFERENCE = ROOT / "docs" / "reference"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


def reference(name: str) -> str:
    path = REFERENCE / name
    assert path.is_file(), f"docs/reference/{name} is missing"
    return path.read_text(encoding="utf-8")


def words_in(text: str) -> set[str]:
    """What stands in code style, in running text or in a block."""
    spans = re.findall(r"`+([^`]+)`+", text)
    return {word for span in spans for word in re.split(r"[\s,|=\[\]()/]+", span)}


# -- the reference is complete


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, `tables create` say."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                found = command.get_command(context, verb)
                assert found is not None
                yield f"{name} {verb}", found
        else:
            yield name, command


def cli_section(heading: str) -> set[str]:
    """The words in code style of a section of docs/reference/cli.md, without its subsections and blocks."""
    found = re.search(rf"^#+ {heading}[^\n]*\n(.*?)(?=^#+ |\Z)", reference("cli.md"), re.M | re.S)
    assert found is not None, f"docs/reference/cli.md has no heading {heading}"
    return words_in(re.sub(r"^```.*?^```", "", found.group(1), flags=re.M | re.S))


@pytest.mark.parametrize(("name", "command"), [pytest.param(*pair, id=pair[0]) for pair in commands()])
def test_a_command_is_documented_with_all_its_options(name: str, command: click.Command) -> None:
    documented = cli_section(rf"`tailrace {name}(?:`| )")
    shared = cli_section("Connecting to a server")  # for every command that takes them
    group, _, verb = name.partition(" ")
    if group == "pipeline" and verb != "status":
        shared |= cli_section("`tailrace pipeline`")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                assert option in documented | shared, f"docs/reference/cli.md: `tailrace {name}` lacks `{option}`"
    assert command.help, f"tailrace {name} --help says nothing"


def test_the_command_line_reference_has_no_command_that_is_gone() -> None:
    documented = set(re.findall(r"^#+ `tailrace ([a-z -]+?)(?: [\[A-Z].*)?`$", reference("cli.md"), re.M))
    assert documented == {name for name, _ in commands()} | {name.split()[0] for name, _ in commands() if " " in name}


def test_every_limit_is_documented() -> None:
    documented = words_in(reference("limits.md"))
    names = [name for name in vars(limits) if name.isupper()]
    assert names
    missing = [name for name in names if name not in documented]
    assert not missing, f"docs/reference/limits.md lacks {missing}"


def test_the_pages_on_compaction_agree_with_the_job() -> None:
    size, age = f"{settings.TARGET_BYTES // limits.MiB} MiB", f"`{settings.VACUUM}`"
    for page in ("cold-storage.md", "pipeline.md"):
        text = (REFERENCE / page).read_text()
        assert size in text and age in text, page
    options = (REFERENCE / "cli.md").read_text()
    assert f"the size that files are merged to (`{size.replace(' ', '')}`)" in options
    assert f"remove files unreferenced for this long ({age})" in options


def test_every_setting_is_documented() -> None:
    documented = words_in(reference("configuration.md"))
    missing = [field.name for field in msgspec.structs.fields(Config) if field.name not in documented]
    assert not missing, f"docs/reference/configuration.md lacks {missing}"


def test_every_metric_is_documented() -> None:
    documented = {re.sub(r"^tailrace_|_total$", "", word) for word in words_in(reference("metrics.md"))}
    missing = [name for name in metrics.NAMES if re.sub(r"_total$", "", name) not in documented]
    assert not missing, f"docs/reference/metrics.md lacks {missing}"


def test_every_failpoint_is_documented() -> None:
    documented = words_in("".join(path.read_text(encoding="utf-8") for path in PAGES if "failpoint" in path.stem))
    missing = [name for name in failpoints.NAMES if name not in documented]
    assert not missing, f"the page on failpoints lacks {missing}"


# -- the reference of tables is complete


def names_in(text: str) -> set[str]:
    """The names in what stands in code style: `orders.put(item)` has put in it."""
    return {name for span in re.findall(r"`+([^`]+)`+", text) for name in re.findall(r"\w+", span)}


def members_of(shape: ApiShape) -> Iterator[str]:
    """The parameters in a request, those of its parts included."""
    if isinstance(shape, Structure):
        for name, member in shape.members.items():
            yield name
            yield from members_of(member)
    elif isinstance(shape, ListOf | MapOf):
        yield from members_of(shape.member)


@pytest.mark.parametrize("target", OPERATIONS)
def test_an_operation_is_documented_with_all_its_parameters(target: str) -> None:
    text = reference("dynamodb.md")
    name = target.rpartition(".")[2]
    assert name in names_in(text), f"docs/reference/dynamodb.md says nothing of `{name}`"
    missing = set(members_of(OPERATIONS[target].shape)) - names_in(text)
    assert not missing, f"docs/reference/dynamodb.md says nothing of {sorted(missing)}, which {name} takes"


def test_the_account_of_arns_is_documented() -> None:
    assert render.ACCOUNT in names_in(reference("dynamodb.md"))


def test_every_error_of_the_dynamodb_api_is_documented() -> None:
    named = {name for _, name in dynamodb_errors._KINDS} | set(dynamodb_errors._AUTHENTICATION.values())
    missing = (named | set(dynamodb_errors._PREFIXES) | {"InternalServerError"}) - names_in(reference("dynamodb.md"))
    missing -= {"ExpiredTokenException"}  # keys are not temporary
    assert not missing, f"docs/reference/dynamodb.md lacks {sorted(missing)}"


@pytest.mark.parametrize("kind", [tailrace.Database, tailrace.Table, tailrace.AsyncTable, AsyncOperations])
def test_every_public_method_is_documented(kind: type) -> None:
    public = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_") and name != "followers"]
    assert len(public) > 5
    missing = [name for name in public if name not in names_in(reference("python.md"))]
    assert not missing, f"docs/reference/python.md says nothing of {kind.__name__}'s {missing}"


def test_all_that_the_package_gives_is_documented() -> None:
    documented = names_in(reference("python.md"))
    missing = [name for name in tailrace.__all__ if name not in documented]
    fields = [field.name for kind in (TableInfo, tailrace.Change) for field in msgspec.structs.fields(kind)]
    missing += [name for name in fields if name not in documented]
    assert not missing, f"docs/reference/python.md lacks {missing}"


def test_every_kind_of_error_is_documented() -> None:
    documented = names_in(reference("python.md"))
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.Error)]
    missing = [name for name in kinds if name not in documented]
    assert not missing, f"docs/reference/python.md lacks {missing}"


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


@pytest.mark.parametrize("package", [tables, auth, dynamodb], ids=lambda package: package.__name__)
def test_every_limit_of_tables_is_documented(package: ModuleType) -> None:
    documented = words_in(reference("limits.md"))
    for module in modules_of(package):
        bounds = [name for name in vars(module) if re.fullmatch(r"[A-Z][A-Z_]*_(MAX|MIN|MS|S)", name)]
        missing = [name for name in bounds if name not in documented]
        assert not missing, f"docs/reference/limits.md lacks {missing} of {module.__name__}"


# -- links lead somewhere


def anchors_of(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.M)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_link_within_the_repository_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in LINK.findall(re.sub(r"`[^`\n]+`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        destination = (path.parent / name).resolve() if name else path
        assert destination.exists(), f"{page_name(path)}: there is no {target}"
        if anchor and destination.suffix == ".md":
            assert anchor in anchors_of(destination), f"{page_name(path)}: no heading for {target}"


# -- examples

RUN = ("bash", "console", "javascript", "pycon", "python", "sh")


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/tutorial/chat.md",
        "docs/tutorial/lakehouse.md",
        "docs/tutorial/orders.md",
        "docs/tutorial/first-stream.md",
        "docs/how-to/asgi.md",
        "docs/how-to/aws-sdks.md",
        "docs/how-to/cluster.md",
        "docs/how-to/consume.md",
        "docs/how-to/failpoints.md",
        "docs/how-to/restore.md",
        "docs/how-to/subscriptions.md",
        "docs/how-to/views.md",
        "docs/reference/javascript.md",
        "docs/reference/python.md",
    ],
)
def test_a_page_that_should_has_examples_that_run(name: str) -> None:
    assert ROOT / name in SESSIONS, f"mark the examples of {name} with <!-- run --> above their blocks"


@pytest.mark.parametrize("path", SESSIONS, ids=page_name)
def test_what_is_marked_is_in_a_language_that_can_be_run(path: Path) -> None:
    assert {language for language, _ in marked(path)} <= set(RUN)


def test_the_page_of_the_tutorial_is_the_one_among_the_examples() -> None:
    text = (ROOT / "docs" / "tutorial" / "orders.md").read_text(encoding="utf-8")
    shown = [match["code"] for match in FENCE.finditer(text) if match["language"] == "html"]
    assert shown == [(ROOT / "examples" / "orders" / "orders.html").read_text(encoding="utf-8")]
