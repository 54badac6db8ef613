"""The number of requests that a commit of the job `tier` sends to a bucket, counted at an S3 API on this machine.

It needs `pip install boto3 'moto[s3,server]'`. With the argument 130 it reaches a checkpoint of
Delta.
"""

import logging
import re
import sys
from collections import Counter

import boto3
from moto.server import ThreadedMotoServer

from tailrace.bulk.cold_rows import cold_batch
from tailrace.bulk.entries import batch
from tailrace.cold.schemas import STREAMS
from tailrace.cold.store import Store
from tailrace.cold.writing import commit, write_rows
from tailrace.log.entry import Entry

COMMITS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
ENTRIES = 100  # of a commit
requests = Counter()


class Counting(logging.Handler):
    """Counts the lines that the server writes about requests."""

    def emit(self, record):
        found = re.search(r"([A-Z]+) (/\S*) HTTP", record.getMessage())
        if found:
            requests["LIST" if "list-type=2" in found[2] else found[1]] += 1


log = logging.getLogger("werkzeug")
log.setLevel(logging.INFO)
log.addHandler(Counting())
log.propagate = False


def shown(before):
    return ", ".join(f"{count} {method}" for method, count in sorted((requests - before).items()))


server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
try:
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
    keys["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    bucket = boto3.client(
        "s3",
        endpoint_url=keys["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
    bucket.create_bucket(Bucket="history")
    for number in range(1, COMMITS + 1):
        store = Store("s3://history/cold", keys)
        first = (number - 1) * ENTRIES
        entries = [Entry(1, at, at + 1, at, b"hello") for at in range(first, first + ENTRIES)]
        rows = cold_batch("stream", batch(entries), stream="greetings", content_type="text/plain")
        before = requests.copy()
        files = write_rows(store, "streams", [rows])
        written = requests.copy()
        uploads = shown(before)
        commit(store, "streams", STREAMS, files, app="tier", generation=number, database="example")
        if number < 4 or number % 10 < 2:
            print(f"commit {number:4}: the file {uploads}; its commit {shown(written)}")
finally:
    server.stop()
