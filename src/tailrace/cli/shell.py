"""The interactive SQL shell, ``tailrace sql`` on a terminal.

Enter runs the input once its last statement ends with a semicolon, and is a new line before that. Ctrl-C discards the
line, or stops waiting for a result; Ctrl-D quits. The history is kept in a file that only the user can read, without
statements that may hold a password.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, completion_is_selected
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.formatted_text.utils import split_lines
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import Output as Screen
from prompt_toolkit.styles import Style
from rich.text import Text

from tailrace import __version__
from tailrace.cli.meta import HELP, MetaCommands, Quit
from tailrace.cli.script import complete, located, statements
from tailrace.cli.session import SqlSession, StatementResult
from tailrace.cli.sql import Output
from tailrace.cli.sql_completion import KEYWORDS, DatabaseNames, SqlCompleter
from tailrace.cli.text import safe
from tailrace.errors import Error
from tailrace.limits import MiB
from tailrace.sql.error import secret

HISTORY_BYTES_MAX: Final = 1 * MiB  # of the file; when it is longer, the older half is removed
PROMPT: Final = "tailrace> "
WORDS: Final = {"help": "\\?", "exit": "\\q", "quit": "\\q"}  # that need no backslash and no semicolon
_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold ansigreen",
        "more": "ansibrightblack",
        "keyword": "bold ansiblue",
        "text": "ansigreen",
        "number": "ansicyan",
        "comment": "italic ansibrightblack",
        "command": "bold ansimagenta",
    }
)
_TOKEN: Final = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*(?:[^*]|\*(?!/))*(?:\*/)? )
    | (?P<text> '(?:[^']|'')*'? )
    | (?P<name> "(?:[^"]|"")*"? )
    | (?P<word> [^\W\d]\w* )
    | (?P<number> \d+(?:\.\d*)? )
    | (?P<other> . )
    """,
    re.X | re.S,
)


class SqlLexer(Lexer):
    """Highlights the input."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = list(split_lines(coloured(document.text)))
        return lambda number: lines[number] if number < len(lines) else []


def coloured(text: str) -> StyleAndTextTuples:
    """The text in parts, each with its style."""
    if text.startswith("\\"):
        name, space, rest = text.partition(" ")
        return [("class:command", name), ("", space + rest)]
    found: StyleAndTextTuples = []
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup or "", token.group()
        if kind == "word":
            kind = "keyword" if word.upper() in KEYWORDS else ""
        found.append((f"class:{kind}" if kind in ("comment", "text", "number", "keyword") else "", word))
    return found


# -- history


class DiscreetHistory(FileHistory):
    """A history whose file omits statements that may hold a password; in memory they stay until the shell ends."""

    def store_string(self, string: str) -> None:
        if not secret(string) and not string.startswith("\\password"):
            super().store_string(string)


def history_path() -> Path:
    """The file: TAILRACE_HISTORY, or one in the user's state directory."""
    if named := os.environ.get("TAILRACE_HISTORY"):
        return Path(named).expanduser()
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "tailrace" / "sql_history"


def history(path: Path) -> History:
    """The history in a file that only the user can read; in memory, where no file can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        _shorten(path)
    except (OSError, RuntimeError):  # no home directory, or no permission
        return InMemoryHistory()
    return DiscreetHistory(str(path))


def _shorten(path: Path) -> None:
    """Remove the older half of a file that is too long. An entry begins with a line of its time, `# ...`."""
    if not path.is_file() or path.stat().st_size <= HISTORY_BYTES_MAX:
        return
    content = path.read_bytes()
    begins = content.find(b"\n# ", len(content) // 2)
    kept = path.with_name(f"{path.name}.{os.getpid()}")
    kept.touch(mode=0o600)
    kept.write_bytes(content[begins:] if begins >= 0 else b"")
    kept.replace(path)


# -- the shell


class Shell:
    """One interactive session. `source` and `screen` are the terminal, except in tests."""

    def __init__(
        self, session: SqlSession, output: Output, *, source: Input | None = None, screen: Screen | None = None
    ) -> None:
        self._sql = session
        self._output = output
        self._meta = MetaCommands(session, output, self._run_statements)
        self.names = DatabaseNames(self._result)
        self._prompt: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            prompt_continuation=_continuation,
            lexer=SqlLexer(),
            style=_STYLE,
            completer=SqlCompleter(self.names, HELP),
            complete_while_typing=True,
            auto_suggest=AutoSuggestFromHistory(),
            history=history(history_path()),
            enable_history_search=False,
            key_bindings=_keys(),
            reserve_space_for_menu=6,
            input=source,
            output=screen,
        )

    def run(self) -> None:
        """Read and run until the user quits."""
        try:
            self._greet()
            self._loop()
        finally:
            self.names.close()

    def _loop(self) -> None:
        while True:
            self.names.refresh()
            try:
                text = self._prompt.prompt()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                self.execute(text)
            except Quit:
                return
            except KeyboardInterrupt:
                self._print_error("stopped waiting; the server may still complete the statement")

    def execute(self, text: str) -> None:
        """Run the input: statements, or a meta-command."""
        command = meta_command(text)
        if command is None:
            self._meta.last = text
            self._run_statements(text)
            return
        try:
            self._meta.run(command)
        except Error as error:
            self._print_error(str(error))

    def _run_statements(self, text: str) -> None:
        for statement in statements(text):
            began_s = time.perf_counter()
            try:
                results = self._sql.run(statement.text)
            except Error as error:
                self._print_error(located(text, statement, error, self._output.console.width).text())
                return
            self.names.note(statement.text)
            for result in results:
                self._output.show(result, time.perf_counter() - began_s)

    def _result(self, text: str) -> StatementResult:
        return self._sql.look(text)[-1]

    def _greet(self) -> None:
        console = self._output.console
        console.print(Text.assemble(("Tailrace", "bold"), f" {__version__} · {safe(self._sql.name)}"))
        console.print(Text("Statements end with a semicolon. Type help for help, exit to quit.\n", style="dim"))

    def _print_error(self, message: str) -> None:
        console = self._output.console
        head, *shown = message.split("\n")
        console.print(Text(safe(head), style="bold red"), soft_wrap=True)
        for line in shown:
            console.print(Text(safe(line), style="bold red" if line.strip() == "^" else ""), soft_wrap=True)
        console.print()


def meta_command(text: str) -> str | None:
    """The meta-command that was typed, if it is one."""
    line = text.strip()
    if line.startswith("\\"):
        return line
    return WORDS.get(line.rstrip(";").rstrip().lower())


def _continuation(width: int, number: int, wrapped: int) -> StyleAndTextTuples:
    return [("class:more", " " * (width - 3) + "-> "[:width])]


def _keys() -> KeyBindings:
    bindings = KeyBindings()

    @Condition
    def ended() -> bool:
        text = get_app().current_buffer.text
        return meta_command(text) is not None or complete(text)

    @bindings.add("enter", filter=ended & ~completion_is_selected)
    def _run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings
