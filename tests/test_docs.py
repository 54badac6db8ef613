"""The documentation is complete and true, as far as a program can tell.

Every command, option, limit, setting, metric and failpoint has its place in docs/reference; every link leads
somewhere; every example under the comment ``<!-- run -->`` runs. Examples in bash of one file run in order, in
one shell, beside a server that takes the place of the one at port 4437 (a line that follows a stream runs behind
the others); each one in Python runs alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from tailrace import failpoints, limits, metrics
from tailrace.cli import cli
from tailrace.config import Config
from tests.support.server import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

FENCE = re.compile(r"(?P<mark><!-- run -->\s*\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


@pytest.mark.parametrize(("name", "command"), [pytest.param(*pair, id=pair[0]) for pair in commands()])
def test_a_command_is_documented_with_all_its_options(name: str, command: click.Command) -> None:
    text = reference("cli.md")
    section = re.search(rf"^(#+) .*tailrace {name}\b.*?$(.*?)(?=^\1 |\Z)", text, re.M | re.S)
    assert section is not None, f"docs/reference/cli.md has no heading with `tailrace {name}`"
    documented = words_in(section.group(2))
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                assert option in documented, f"docs/reference/cli.md: `tailrace {name}` says nothing of `{option}`"
    assert command.help, f"tailrace {name} --help says nothing"


def test_every_limit_is_documented() -> None:
    documented = words_in(reference("limits.md"))
    names = [name for name in vars(limits) if name.isupper()]
    assert names
    missing = [name for name in names if name not in documented]
    assert not missing, f"docs/reference/limits.md lacks {missing}"


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


# -- examples run


def marked(path: Path, *languages: str) -> list[str]:
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [match["code"] for match in found if match["mark"] and match["language"] in languages]


SHELL_PAGES = [path for path in PAGES if marked(path, "bash", "sh")]
PYTHON_EXAMPLES = [
    pytest.param(code, id=f"{page_name(path)}-{index}")
    for path in PAGES
    for index, code in enumerate(marked(path, "python"))
]


def test_the_readme_has_an_example_that_runs() -> None:
    assert ROOT / "README.md" in SHELL_PAGES, "mark the README's session with <!-- run --> above its block"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples use curl")
@pytest.mark.parametrize("path", SHELL_PAGES, ids=page_name)
def test_the_marked_session_runs(path: Path, tmp_path: Path) -> None:
    with ServerProcess.tailrace(tmp_path / "data") as server:
        here = f"127.0.0.1:{server.port}"
        script = "\n".join(marked(path, "bash", "sh"))
        script = re.sub(r"(127\.0\.0\.1|localhost):4437", here, script).replace(".venv/bin/", "")
        # What a reader sees in a second terminal runs behind; and what fails must fail.
        script = re.sub(r"^(.*(?:live=|tailrace tail ).*)$", r"\1 &", script, flags=re.M)
        script = re.sub(r"\bcurl ", "curl -fsS ", script)
        script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}\nsleep 1"
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TAILRACE_URL": server.url,
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, f"{script}\n--\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("code", PYTHON_EXAMPLES)
def test_the_marked_python_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{code}\n--\n{done.stdout}{done.stderr}"
