"""An assistant that answers every message of a chat once, also when it is killed in the middle of its work.

    .venv/bin/python examples/ai_worker.py http://127.0.0.1:4437    run the worker; stop it with Ctrl-C
    .venv/bin/python examples/ai_worker.py                          a demonstration: a server, a chat, a killed worker

Messages are rows of the table chat.messages. A route sends those of people to the topic app.new_messages, in the same
transaction that writes them. The worker consumes the topic and writes its answer as a row whose key is
derived from the key of the question: answering twice writes the same row twice, so the effect is exactly once.
"""

import subprocess
import sys
import tempfile
import time

from tailrace.client import Client, Consumer

SETUP = """
CREATE TABLE IF NOT EXISTS chat.messages (id TEXT PRIMARY KEY, room TEXT, author TEXT, body TEXT);
CREATE TOPIC IF NOT EXISTS app.new_messages PARTITIONS 4;
"""
ROUTE = """
ALTER TOPIC app.new_messages ADD SOURCE chat.messages ON INSERT
WHERE (author <> 'assistant') PARTITION BY (room) WITH (payload = 'full')
"""
GROUP = "ai-service"
VISIBILITY_S = 2.0  # how long the messages of a killed worker wait for another one; a minute in real life


def think(text):
    """Stands for a call of a language model."""
    time.sleep(0.02)
    return f"You said: {text}"


def work(url):
    """Answer messages until SIGTERM or SIGINT."""
    with Client(url) as client, Consumer(client, "app.new_messages", GROUP, visibility_s=VISIBILITY_S) as consumer:

        def answer(message):
            question = message.json()
            row = [f"re:{question['id']}", question["room"], "assistant", think(question["body"])]
            client.sql("INSERT OR REPLACE INTO chat.messages VALUES (?, ?, ?, ?)", row)
            print(f"answered {question['id']}, attempt {message.attempt}", flush=True)

        consumer.run(answer)


def set_up(client):
    """The table, the topic, and the route between them."""
    client.sql(SETUP)
    if not client.describe_topic("app.new_messages")["routes"]:
        client.sql(ROUTE)


def lag(client):
    return sum(group["lag"] for group in client.describe_topic("app.new_messages")["groups"])


def show(directory):
    """A chat, a worker that is killed while it works, and another that does the rest."""
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--dev", "--port", "0", "--data", directory]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    workers = []
    try:
        url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        with Client(url) as client:
            set_up(client)
            for number in range(60):
                row = [f"m-{number}", f"room-{number % 7}", "ann", f"question {number}"]
                client.sql("INSERT INTO chat.messages VALUES (?, ?, ?, ?)", row)

            first = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
            workers.append(first)
            answered = [first.stdout.readline() for _ in range(10)]
            first.kill()  # no goodbye: what it holds is delivered again when its lease has run out
            answered += first.communicate()[0].splitlines()
            print(f"the first worker was killed after {len(answered)} answers")

            second = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
            workers.append(second)
            while len({line.split()[1] for line in answered}) < 60:
                answered.append(second.stdout.readline())
            second.terminate()  # a goodbye: it finishes the message in hand, and gives back what else it has
            second.communicate()
            print(f"the second worker did the rest; {lag(client)} messages are left")

            (result,) = client.sql("SELECT id FROM chat.messages")
            ids = {row["id"] for row in result.rows}
            missing = [f"m-{number}" for number in range(60) if f"re:m-{number}" not in ids]
            assert len(ids) == 120, f"not answered: {missing}"
            print("60 questions, 60 answers")
    finally:
        for process in (*workers, server):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            show(temporary)
