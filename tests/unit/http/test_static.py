"""The files of the web console: for everyone, current, and unable to load or run anything else."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from tailrace.http import static
from tests.unit.http.inprocess import Up, serve

ROOT = Path(__file__).resolve().parents[3]
SENT_BYTES_MAX = 150_000


def names() -> list[str]:
    return sorted({path.name for path in static.FILES.iterdir()} | {static.CLIENT})


def test_all_files_are_small_as_they_are_sent() -> None:
    sizes = {name: len(static._load(name).compressed) for name in names()}
    assert sum(sizes.values()) < SENT_BYTES_MAX, sizes


def test_a_file_is_sent_once_while_it_is_current(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for name in set(names()) - {static.PAGE}:
            first = await up.http.get(f"/console/{name}", headers={"accept-encoding": "gzip"})
            assert first.status_code == 200
            assert first.headers["content-encoding"] == "gzip"
            plain = await up.http.get(f"/console/{name}", headers={"accept-encoding": "identity"})
            assert plain.content == first.content
            again = await up.http.get(f"/console/{name}", headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            head = await up.http.head(f"/console/{name}", headers={"accept-encoding": "identity"})
            assert int(head.headers["content-length"]) == len(plain.content)

    serve(data_dir, scenario)


def test_the_policy_lets_a_page_use_this_server_alone(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for target in ("/console", "/console/", "/console/index.html"):
            answer = await up.http.get(target, follow_redirects=True)
            assert answer.url.path == "/console"
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert re.findall(r"https?:", policy) == []
            assert answer.headers["x-content-type-options"] == "nosniff"

    serve(data_dir, scenario)


def test_nothing_else_is_served(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for name in ("missing.js", "..%2fstatic.py", "%2e%2e", "console.css%00", "a/b"):
            answer = await up.http.get(f"/console/{name}")
            assert answer.status_code == 404, name
        assert (await up.http.post("/console")).status_code == 405

    serve(data_dir, scenario)


def test_the_client_is_the_one_of_the_repository() -> None:
    assert static._load(static.CLIENT).content == (ROOT / "clients" / "js" / "tailrace.js").read_bytes()
    assert gzip.decompress(static._load(static.CLIENT).compressed) == static._load(static.CLIENT).content
    assert not (static.FILES / static.CLIENT).exists()  # one source: a wheel has it beside the other files


def test_pages_load_nothing_from_elsewhere() -> None:
    for path in static.FILES.iterdir():
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert not found, (path.name, found)
        assert ".innerHTML" not in text, f"{path.name}: text enters a page as text"
