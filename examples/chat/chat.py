"""A chat in a page, with an assistant that answers questions word by word: a stand-in for a language model.

    .venv/bin/python examples/chat/chat.py serve [--url http://127.0.0.1:4437]    the page, and a worker
    .venv/bin/python examples/chat/chat.py                                        a demonstration without a browser

`serve` starts a server over ./data, unless it is given the URL of one that allows the origin of the page, such as
`tailrace serve --dev --allow-origin http://127.0.0.1:8081`. A message is a row of the table chat.room; a route sends
the questions among them to the topic chat.questions, in the same transaction; the worker consumes the topic, and
writes its reply into the row `re:<id>`, a word at a time. The page follows the changes of the table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from tailrace.client import Client, Consumer

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "clients" / "js" / "tailrace.js"
GROUP = "assistant"
SETUP = """
CREATE TABLE IF NOT EXISTS chat.room (
    id TEXT PRIMARY KEY, author TEXT NOT NULL, body TEXT NOT NULL, at TEXT, done BOOLEAN
) WITH (stream = 'NEW_AND_OLD_IMAGES');
CREATE TOPIC IF NOT EXISTS chat.failed;
CREATE TOPIC IF NOT EXISTS chat.questions WITH (max_attempts = 3, dead_letter = chat.failed)
"""
ROUTE = """
ALTER TOPIC chat.questions ADD SOURCE chat.room ON INSERT
WHERE (author <> 'assistant' AND body LIKE '%?') WITH (payload = 'full')
"""
REPLIES = (
    ("log", "The log is where it is written. Everything else, the table, the topic, this page, is read from it."),
    (
        "lost",
        "Nothing is lost: your row and the message about it were one transaction, on disk before you saw it.",
    ),
    ("tea", "The tea is in the kitchen, second drawer, behind the biscuits that nobody admits to have bought."),
)


def set_up(client):
    """The table, the topics, and the route between them."""
    client.sql(SETUP)
    if not client.describe_topic("chat.questions")["routes"]:
        client.sql(ROUTE)


def think(question):
    """Stands for a language model: the words of a reply, one after the other."""
    default = f"You ask: {question['body']} A model would know; I only stand in for one."
    return next((reply for word, reply in REPLIES if word in question["body"].lower()), default).split()


def answer(client, message, pause_s):
    """Write the reply as it comes. A second attempt writes the same row again, from the beginning."""
    question = message.json()
    words = think(question)
    for count in range(1, len(words) + 1):
        row = [f"re:{question['id']}", "assistant", " ".join(words[:count]), question["at"], count == len(words)]
        client.sql("INSERT OR REPLACE INTO chat.room VALUES (?, ?, ?, ?, ?)", row)
        time.sleep(pause_s)


def work(url, stop, pause_s=0.06):
    """Answer questions until `stop` is set."""
    with Client(url) as client, Consumer(client, "chat.questions", GROUP, visibility_s=10) as consumer:
        threading.Thread(target=lambda: (stop.wait(), consumer.stop()), daemon=True).start()
        consumer.run(lambda message: answer(client, message, pause_s))


class Pages(SimpleHTTPRequestHandler):
    """The page, the client module, and where the server is."""

    def __init__(self, *arguments, tailrace, **options):
        self.tailrace = tailrace
        super().__init__(*arguments, directory=str(HERE / "page"), **options)

    def do_GET(self):
        if self.path == "/tailrace.js":
            self.answer("text/javascript", CLIENT.read_bytes())
        elif self.path == "/settings.json":
            self.answer("application/json", json.dumps({"url": self.tailrace()}).encode())
        else:
            super().do_GET()

    def answer(self, content_type, body):
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("cache-control", "no-store")
        super().end_headers()

    def log_message(self, *arguments):
        pass


class Chat:
    """A server, unless there is one, the page, and a worker."""

    def __init__(self, data, url=None, port=0, page_port=0):
        self.url = url
        self.pages = ThreadingHTTPServer(("127.0.0.1", page_port), partial(Pages, tailrace=lambda: self.url))
        self.page = f"http://127.0.0.1:{self.pages.server_address[1]}"
        self._data, self._port = data, port
        self._server = None
        self._stop = threading.Event()

    def __enter__(self):
        if self.url is None:
            command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--port", str(self._port)]
            command += ["--data", self._data, "--allow-origin", self.page]
            self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            lines = []
            for line in self._server.stdout:
                lines.append(line)
                self.url = next((word for word in line.split() if word.startswith("http://")), None)
                if self.url is not None:
                    break
            if self.url is None:
                raise SystemExit("".join(lines))
            threading.Thread(target=self._server.stdout.read, daemon=True).start()
        with Client(self.url) as client:
            set_up(client)
        self._worker = threading.Thread(target=work, args=(self.url, self._stop))
        self._worker.start()
        threading.Thread(target=self.pages.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._worker.join()
        self.pages.shutdown()
        self.pages.server_close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


def show():
    """Ask three questions, and see that each has one whole reply."""
    with tempfile.TemporaryDirectory() as data, Chat(data) as chat, Client(chat.url) as client:
        for path, wanted in (
            ("/", b"<title>"),
            ("/tailrace.js", b"class Client"),
            ("/settings.json", chat.url.encode()),
        ):
            with urlopen(chat.page + path) as page:
                assert wanted in page.read(), path
        said = {"m-1": "where is the tea?", "m-2": "good morning", "m-3": "is anything lost?", "m-4": "why?"}
        for key, body in said.items():
            client.sql("INSERT INTO chat.room VALUES (?, 'ann', ?, '2026-01-01T00:00:00Z', TRUE)", [key, body])
        while True:
            (found,) = client.sql("SELECT id, body FROM chat.room WHERE author = 'assistant' AND done ORDER BY id")
            if len(found.rows) == 3:
                break
            time.sleep(0.1)
        for row in found.rows:
            print(f"{said[row['id'].removeprefix('re:')]:20} {row['body']}")
        assert [row["id"] for row in found.rows] == ["re:m-1", "re:m-3", "re:m-4"]
        print("4 messages, 3 questions, 3 replies")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["serve"])
    parser.add_argument("--url", help="of a server that is up; without it, one is started")
    parser.add_argument("--port", type=int, default=4437, help="of that one")
    parser.add_argument("--page-port", type=int, default=8081)
    parser.add_argument("--data", default="data")
    given = parser.parse_args()
    if given.what is None:
        show()
        return
    with Chat(given.data, given.url, given.port, given.page_port) as chat:
        print(f"the chat is at {chat.page} (Tailrace at {chat.url}); stop it with Ctrl-C", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    main()
