"""The SQL shell: what a person types at ``tailrace sql``, until they leave.

Enter runs what was typed once its last statement has ended with a semicolon, and is a new line before that. Ctrl-C
forgets the line, or stops waiting for an answer; Ctrl-D leaves. What was typed is kept in a file of the person's own,
but for statements that may hold a password.
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
from tailrace.cli.asking import Answer, Asked
from tailrace.cli.completing import KEYWORDS, Names, SqlCompleter
from tailrace.cli.meta import HELP, Left, Meta
from tailrace.cli.script import complete, mistake, statements
from tailrace.cli.sql import Output
from tailrace.cli.text import safe
from tailrace.errors import Error
from tailrace.limits import MiB
from tailrace.sql.error import secret

HISTORY_BYTES_MAX: Final = 1 * MiB  # of the file; when it is longer, the older half is forgotten
PROMPT: Final = "tailrace> "
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


class Colours(Lexer):
    """Colours what is typed."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = list(split_lines(coloured(document.text)))
        return lambda number: lines[number] if number < len(lines) else []


def coloured(text: str) -> StyleAndTextTuples:
    """The text in pieces, each with its style."""
    if text.startswith("\\"):
        name, space, rest = text.partition(" ")
        return [("class:command", name), ("", space + rest)]
    found: StyleAndTextTuples = []
    for token in _TOKEN.finditer(text):
        kind, said = token.lastgroup or "", token.group()
        if kind == "word":
            kind = "keyword" if said.upper() in KEYWORDS else ""
        found.append((f"class:{kind}" if kind in ("comment", "text", "number", "keyword") else "", said))
    return found


# -- history


class DiscreetHistory(FileHistory):
    """A history whose file holds no statement that may have a password in it; memory does, until the shell ends."""

    def store_string(self, string: str) -> None:
        if not secret(string) and not string.startswith("\\password"):
            super().store_string(string)


def history_path() -> Path:
    """The file: TAILRACE_HISTORY, or one in the person's own state directory."""
    if named := os.environ.get("TAILRACE_HISTORY"):
        return Path(named).expanduser()
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "tailrace" / "sql_history"


def history(path: Path) -> History:
    """The history in a file that nobody else can read; in memory, where there can be no file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        _shorten(path)
    except (OSError, RuntimeError):  # no home, or no way to write there: a shell without a past is still one
        return InMemoryHistory()
    return DiscreetHistory(str(path))


def _shorten(path: Path) -> None:
    """Forget the older half of a file that has grown too long. An entry begins with a line of its time, `# ...`."""
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
    """One session of a person. `source` and `screen` are the terminal, unless a test says otherwise."""

    def __init__(
        self, asked: Asked, output: Output, *, source: Input | None = None, screen: Screen | None = None
    ) -> None:
        self._asked = asked
        self._output = output
        self._meta = Meta(asked, output)
        self.names = Names(self._ask)
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            prompt_continuation=_continuation,
            lexer=Colours(),
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
        """Ask and answer until the person leaves."""
        try:
            self._greet()
            self._talk()
        finally:
            self.names.close()

    def _talk(self) -> None:
        while True:
            self.names.refresh()
            try:
                text = self._session.prompt()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                self.answer(text)
            except Left:
                return
            except KeyboardInterrupt:
                self._complain("stopped waiting; what the server had begun may still be done")

    def answer(self, text: str) -> None:
        """Run what was typed: statements, or one of the shell's own commands."""
        if text.lstrip().startswith("\\"):
            try:
                self._meta.run(text.strip())
            except Error as error:
                self._complain(str(error))
            return
        for statement in statements(text):
            began = time.perf_counter()
            try:
                answers = self._asked.run(statement.text)
            except Error as error:
                self._complain(mistake(text, statement, error, self._output.console.width).told())
                return
            self.names.note(statement.text)
            for answer in answers:
                self._output.show(answer, time.perf_counter() - began)

    def _ask(self, text: str) -> Answer:
        return self._asked.run(text)[-1]

    def _greet(self) -> None:
        console = self._output.console
        console.print(Text.assemble(("Tailrace", "bold"), f" {__version__} · {safe(self._asked.name)}"))
        console.print(Text("Statements end with a semicolon; \\? helps, \\q leaves.\n", style="dim"))

    def _complain(self, what: str) -> None:
        console = self._output.console
        head, *shown = what.split("\n")
        console.print(Text(safe(head), style="bold red"), soft_wrap=True)
        for line in shown:
            console.print(Text(safe(line), style="bold red" if line.strip() == "^" else ""), soft_wrap=True)
        console.print()


def _continuation(width: int, number: int, wrapped: int) -> StyleAndTextTuples:
    return [("class:more", " " * (width - 3) + "-> "[:width])]


def _keys() -> KeyBindings:
    bindings = KeyBindings()

    @Condition
    def ended() -> bool:
        text = get_app().current_buffer.text
        return text.lstrip().startswith("\\") or complete(text)

    @bindings.add("enter", filter=ended & ~completion_is_selected)
    def _run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings
