"""Runs the examples of one page of the documentation in order, as a reader would.

Reads ``[[language, code], ...]`` as JSON from standard input and works in the current directory. Python blocks share
one namespace (``pycon`` is compared with what it shows, as doctest does); bash blocks that follow each other share one
shell, and what they export holds from then on; JavaScript is passed over where its packages are not installed. A
``console`` block with a line like ``$ tailrace serve --dev`` starts that server on a free port; where the examples need
a server and start none, one with ``--dev`` is started before them. Whatever its port is, it stands for 4437.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.support.server import ROOT, ServerProcess

_ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):4437")
_FOLLOWS = re.compile(r"^(.*(?:live=|tailrace tail |--follow\b).*)$", re.M)  # what has a terminal of its own
_NODE_HOME = ROOT / "tests" / "clients"  # where the packages are that JavaScript may import
_EXPORTED = ".exported"


class Session:
    """What the examples of a page have in common."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._here = "127.0.0.1:4437"
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, language: str, code: str) -> None:
        code = _ADDRESS.sub(self._here, code)
        match language:
            case "python":
                exec(compile(code, "<example>", "exec"), self._names)
            case "pycon":
                self._compare(code)
            case "bash" | "sh":
                self._shell(code)
            case "javascript":
                self._javascript(code)
            case "console":
                self._serve(code)
            case _:
                raise AssertionError(f"an example in {language or 'no language'} cannot be run")

    def serve(self, options: list[str], environment: dict[str, str]) -> None:
        """Start a server and let its address stand for the documented one."""
        command = [sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", *options]
        server = ServerProcess(command, env=environment)
        self._stack.enter_context(server)
        self._here = server.url.partition("://")[2]
        os.environ["TAILRACE_URL"] = server.url
        if "AWS_ENDPOINT_URL" in os.environ:  # it was set before the server was there
            os.environ["AWS_ENDPOINT_URL"] = _ADDRESS.sub(self._here, os.environ["AWS_ENDPOINT_URL"])

    def _serve(self, code: str) -> None:
        line = next(line for line in code.splitlines() if line.startswith("$ "))
        words = shlex.split(line[2:])
        environment = dict(word.split("=", 1) for word in words[: words.index("tailrace")])
        options = words[words.index("serve") + 1 :]
        if "--data" not in options:
            options += ["--data", "data"]
        at = options.index("--data") + 1
        options[at] = str(Path(options[at]).resolve())
        self.serve(options, environment)

    def _compare(self, code: str) -> None:
        test = doctest.DocTestParser().get_doctest(code, self._names, "example", None, 0)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        result = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
        self._names.update(test.globs)
        assert result.failed == 0, f"{result.failed} of {result.attempted} examples show something else"

    def _shell(self, code: str) -> None:
        behind = _FOLLOWS.search(code) is not None
        script = _FOLLOWS.sub(r"\1 &", code.replace(".venv/bin/", ""))
        script = re.sub(r"\bcurl ", "curl -fsS ", script)  # what fails must fail
        script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}\n{'sleep 1' if behind else ''}\n"
        subprocess.run(["bash", "-euo", "pipefail", "-c", f"{script}env -0 > {_EXPORTED}"], check=True)
        for pair in Path(_EXPORTED).read_text().split("\0"):
            name, equals, value = pair.partition("=")
            if equals:
                os.environ[name] = value

    def _javascript(self, code: str) -> None:
        if (_NODE_HOME / "node_modules").is_dir():
            subprocess.run(["node", "--input-type=module", "-e", code], cwd=_NODE_HOME, check=True)


def provide_command() -> None:
    """Let `tailrace` be the one that is tested."""
    folder = Path(".bin").resolve()
    folder.mkdir()
    command = folder / "tailrace"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tailrace.cli "$@"\n')
    command.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))


def main() -> int:
    blocks: list[tuple[str, str]] = [(language, code) for language, code in json.load(sys.stdin)]
    provide_command()
    with contextlib.ExitStack() as stack:
        session = Session(stack)
        if not any(language == "console" for language, _ in blocks) and any(
            _ADDRESS.search(code) or "tailrace " in code for language, code in blocks if language != "pycon"
        ):
            session.serve(["--dev", "--data", str(Path("served").resolve()), "--long-poll-timeout", "3"], {})
        for language, group in groupby(blocks, key=lambda block: block[0]):
            codes = [code for _, code in group]
            for code in ["\n".join(codes)] if language in ("bash", "sh") else codes:
                try:
                    session.run(language, code)
                except Exception:
                    sys.stdout.flush()
                    traceback.print_exc()
                    sys.stderr.write(f"\nin this example:\n{code}")
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
