"""Where cold storage is: URLs, settings, errors that say what to do."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tailrace.cold.schemas import CHANGES, name_of, place_of, schema_of
from tailrace.cold.store import Store
from tailrace.errors import Invalid, Unavailable
from tests.unit.cold.rows import ORDERS, change_rows, entries, positions, tiered

SECRET = "kept-to-ourselves"


def test_a_path_and_its_url_are_the_same_store(tmp_path: Path) -> None:
    tiered(Store(tmp_path / "my cold"), ORDERS, [change_rows(entries(1, 0, 10))], 1)
    url = (tmp_path / "my cold").as_uri()
    assert "%20" in url
    for form in (url, str(tmp_path / "my cold"), f"{tmp_path}/x/../my cold/"):
        store = Store(form)
        assert store.url == url
        assert positions(store, ORDERS, 1, 0, 10) == list(range(10))
    assert store.uri(ORDERS) == f"{tmp_path}/my cold/tables/orders"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is empty"),
        ("gopher://x/y", "does not support gopher://"),
        ("file://elsewhere/x", "three slashes"),
        ("s3://", "not a URL of a bucket"),
        ("s3://bucket/x?endpoint=y", "not a URL of a bucket"),
        ("s3://bucket/100%", "percent sign"),
        ("/data/100%", "percent sign"),
        (f"s3://key:{SECRET}@bucket/x", "AWS_SECRET_ACCESS_KEY"),
        (f"s3://key:a/{SECRET}@bucket/x", "AWS_SECRET_ACCESS_KEY"),  # a secret may have slashes in it
        (f"s3://key:{SECRET}/bucket", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_bad_urls_are_reported(url: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        Store(url)
    assert SECRET not in str(caught.value)


def test_the_environment_counts_where_options_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = Store("s3://bucket//a/", {"aws_access_key_id": "given"})
    assert store.url == "s3://bucket/a"
    assert store.uri(ORDERS) == "s3://bucket/a/tables/orders"
    options = store.storage_options
    assert options["aws_access_key_id"] == "given" and "AWS_ACCESS_KEY_ID" not in options
    assert options["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert options["AWS_ALLOW_HTTP"] == "true" and options["aws_conditional_put"] == "etag"

    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")  # on another machine
    there = pickle.loads(pickle.dumps(store))
    assert there.storage_options == options and there.url == store.url
    assert SECRET not in repr(there) + str(there)


def test_a_local_store_travels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tiered(store, ORDERS, [change_rows(entries(1, 0, 10))], 1)
    assert positions(pickle.loads(pickle.dumps(store)), ORDERS, 1, 2, 5) == [2, 3, 4]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(Unavailable, match=f"{closed}.*permissions"):
        tiered(Store(closed), ORDERS, [change_rows(entries(1, 0, 10))], 1)


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "cold").write_text("")
    with pytest.raises(Invalid, match="needs a directory"):
        tiered(Store(tmp_path / "cold"), ORDERS, [change_rows(entries(1, 0, 10))], 1)


@pytest.fixture
def refusing() -> Iterator[str]:
    """An S3 endpoint at which nobody may do anything."""

    class Handler(BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            body = b"<Error><Code>AccessDenied</Code></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = _refuse

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_keys_that_may_not(refusing: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": refusing}
    store = Store("s3://bucket/x", keys)
    for use in (lambda: store.delta(ORDERS), lambda: tiered(store, ORDERS, [change_rows(entries(1, 0, 9))], 1)):
        with pytest.raises(Unavailable, match=r"s3://bucket/x.*keys lack permissions") as caught:
            use()
        assert caught.value.code == "COLD_STORAGE_DENIED"
        assert SECRET not in str(caught.value) and "\x1b" not in str(caught.value) and "\n" not in str(caught.value)


def test_no_server_answers() -> None:
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0"}
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET}
    with pytest.raises(Unavailable, match=r"s3://bucket/x/tables/orders.*AWS_ENDPOINT_URL"):
        Store("s3://bucket/x", options | keys).delta(ORDERS)


@pytest.mark.parametrize("name", ["orders", "a.b-c_D", "..", ".", "_x", "a b/c", "50%", "ü!~", "%2F", "x=1"])
def test_places_are_one_folder_each_and_tell_their_name(tmp_path: Path, name: str) -> None:
    place = place_of("table", name)
    folder, _, rest = place.partition("/")
    assert folder == "tables" and "/" not in rest and "%" not in rest and rest[0] not in "._" and rest.isascii()
    assert name_of(place) == ("table", name)
    assert schema_of(place) == CHANGES
    store = Store(tmp_path)
    tiered(store, place, [change_rows(entries(1, 0, 10))], 1)
    assert positions(store, place, 1, 0, 10) == list(range(10))
    assert [path.name for path in (tmp_path / "tables").iterdir()] == [rest]


def test_what_has_no_place() -> None:
    assert place_of("stream", "/any/path") == "streams" and name_of("streams") == ("stream", "")
    for wrong in (lambda: place_of("index", "x"), lambda: place_of("table", ""), lambda: name_of("tables/a/b")):
        with pytest.raises(Invalid):
            wrong()
