"""Settings: where they come from, which wins, and what is refused in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.config import DEFAULT_PORT, AuthConfig, Config, IssuerConfig, TopicsConfig, load
from tailrace.errors import Invalid
from tailrace.http.authentication import check_data_directory


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(*, environ: dict[str, str] | None = None, **settings: Any) -> Config:
    return load(environ=environ or {}, **settings)


def test_the_defaults() -> None:
    config = loaded(dev=True)
    assert (config.data, config.host, config.port) == ("data", "127.0.0.1", DEFAULT_PORT) == ("data", "127.0.0.1", 4437)
    assert config.dev
    assert config.token is None


def test_the_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('dev = true\nport = 1\nhost = "::1"\ndata = "from file"\n')
    environ = {"TAILRACE_PORT": "2", "TAILRACE_HOST": "localhost", "UNRELATED": "x"}
    config = load(str(file), environ=environ, port=3, host=None)
    assert (config.data, config.host, config.port) == ("from file", "localhost", 3)


def test_a_file_in_the_current_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "tailrace.toml").write_text('token = "a-long-secret-token"\nlong_poll_timeout_s = 5\n')
    config = loaded()
    assert (config.token, config.long_poll_timeout_s) == ("a-long-secret-token", 5)


@pytest.mark.parametrize(("text", "dev"), [("true", True), ("1", True), ("True", True), ("false", False), ("0", False)])
def test_the_environment_sets_every_kind(text: str, dev: bool) -> None:
    environ = {
        "TAILRACE_DEV": text,
        "TAILRACE_TOKEN": "a-long-secret-token",
        "TAILRACE_PAGE_BYTES": "10",
        "TAILRACE_SSE_RECYCLE_S": "1.5",
    }
    config = loaded(environ=environ)
    assert (config.dev, config.token, config.page_bytes, config.sse_recycle_s) == (dev, "a-long-secret-token", 10, 1.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dev": True, "host": "0.0.0.0"}, r"loopback only, not on '0\.0\.0\.0'; leave --dev out and set a token"),
        ({"dev": True, "host": "example.com"}, "loopback only, not on 'example.com'"),
        ({"dev": True, "port": -1}, r"port -1 is out of range; use 0 \(any free one\) to 65535"),
        ({"dev": True, "port": 65536}, "port 65536 is out of range"),
        ({"workers": 2, "database": "postgresql:///x"}, "workers 2 and database cannot be combined.*use workers 1"),
        ({"workers": "auto", "database": "postgresql:///x"}, "workers auto and database cannot be combined"),
        ({"dev": True, "tls_certificate": "x"}, "TLS needs both tls_certificate and tls_key"),
        ({"dev": True, "tls_key": "x"}, "TLS needs both"),
        ({"dev": True, "long_poll_timeout_s": 0}, "long_poll_timeout_s must be a finite number above 0, not 0"),
        ({"dev": True, "sse_recycle_s": -1}, "sse_recycle_s must be a finite number above 0, not -1"),
        ({"dev": True, "page_bytes": 0}, "page_bytes must be a finite number above 0"),
        ({"dev": True, "body_bytes_max": 0}, "body_bytes_max must be a finite number above 0"),
        ({"dev": True, "connections_max": 0}, "connections_max must be a finite number above 0"),
        (
            {"dev": True, "long_poll_timeout_s": float("nan")},
            "long_poll_timeout_s must be a finite number above 0, not nan",
        ),
        ({"dev": True, "sse_recycle_s": float("inf")}, "sse_recycle_s must be a finite number above 0, not inf"),
        ({"dev": True, "log_format": "xml"}, "log_format 'xml' is unknown; use text, json"),
        ({"dev": True, "log_level": "loud"}, "log_level 'loud' is unknown; use debug, info, warning, error"),
        ({"topics": {"max_consume_timeout": 301}}, "topics.max_consume_timeout must be above 0 and at most 300"),
        ({"topics": {"max_consume_timeout": 0}}, "topics.max_consume_timeout must be above 0"),
        ({"topics": {"default_consume_timeout": -1}}, r"default_consume_timeout must be 0 to .*\(300\), not -1"),
        (
            {"topics": {"default_consume_timeout": 20, "max_consume_timeout": 10}},
            r"default_consume_timeout must be 0 to max_consume_timeout \(10\), not 20",
        ),
        ({"topics": {"nonsense": 1}}, r"a setting is wrong: .*`nonsense`.*topics"),
        ({"auth": {"nonsense": 1}}, r"a setting is wrong: .*`nonsense`.*auth"),
        ({"auth": {"access_token_s": 0}}, "auth.access_token_s must be a finite number above 0, not 0"),
        ({"auth": {"refresh_token_s": -5}}, "auth.refresh_token_s must be a finite number above 0, not -5"),
        ({"dev": True, "nonsense": 1}, "a setting is wrong: .*nonsense.*docs/reference/configuration.md"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        loaded(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = ", "cannot read the settings in .*some.toml"),
        ("unknown = 1", "a setting is wrong: .*unknown"),
        ("port = 'many'\ndev = true", "a setting is wrong: .*port"),
        ("port = 1.5\ndev = true", "a setting is wrong: .*port"),
        ("[table]\ndev = true", "a setting is wrong: .*table"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "some.toml").write_text(text)
    with pytest.raises(Invalid, match=message):
        load(str(tmp_path / "some.toml"), environ={})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot read the settings in .*missing.toml"):
        load(str(tmp_path / "missing.toml"), environ={})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="cannot read the settings"):
        load(str(tmp_path / "binary.toml"), environ={})


def test_a_wrong_environment_is_refused() -> None:
    with pytest.raises(Invalid, match=r"a setting is wrong: .*port"):
        loaded(environ={"TAILRACE_DEV": "1", "TAILRACE_PORT": "http"})
    with pytest.raises(Invalid, match=r"a setting is wrong: .*dev"):
        loaded(environ={"TAILRACE_DEV": "maybe"})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_dev_on_loopback(host: str) -> None:
    assert loaded(dev=True, host=host).host == host


@pytest.mark.parametrize("token", ["x", "fifteen-charact"])
def test_a_token_that_could_be_guessed_is_refused(token: str, tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(f"token = {token!r}")
    for wrong in (
        lambda: loaded(token=token),
        lambda: loaded(environ={"TAILRACE_TOKEN": token}),
        lambda: load(str(file), environ={}),
        lambda: check_data_directory(Config(token=token, data=str(tmp_path))),  # settings that were made in Python
    ):
        with pytest.raises(Invalid, match=f"has {len(token)} characters.* openssl rand -hex 32"):
            wrong()
    assert loaded(token=token + "-" * 15).token
    assert loaded(token="").token == ""  # as if there were none


def test_a_token_may_serve_everyone() -> None:
    assert loaded(token="a-long-secret-token", host="0.0.0.0").host == "0.0.0.0"


# -- sections


def test_sections_of_the_file_and_of_the_environment(tmp_path: Path) -> None:
    assert loaded() == Config(topics=TopicsConfig(), auth=AuthConfig())
    assert (TopicsConfig().default_consume_timeout, TopicsConfig().max_consume_timeout) == (30, 300)
    assert not TopicsConfig().allow_user_role_consume
    file = tmp_path / "some.toml"
    file.write_text("[topics]\ndefault_consume_timeout = 5\nmax_consume_timeout = 60\n[auth]\naccess_token_s = 60\n")
    environ = {
        "TAILRACE_TOPICS_DEFAULT_CONSUME_TIMEOUT": "7",
        "TAILRACE_TOPICS_ALLOW_USER_ROLE_CONSUME": "true",
        "TAILRACE_AUTH_REFRESH_TOKEN_S": "120",
    }
    config = load(str(file), environ=environ)
    assert config.topics == TopicsConfig(
        default_consume_timeout=7, max_consume_timeout=60, allow_user_role_consume=True
    )
    assert config.auth == AuthConfig(access_token_s=60, refresh_token_s=120)


ISSUER = {"issuer": "https://i", "jwks_url": "https://i/keys", "audience": "tailrace"}


def test_outside_issuers(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(
        """
[[auth.issuers]]
issuer = "https://i"
jwks_url = "https://i/keys"
audience = "here"
role_claim = "groups"
roles = { admins = "dba" }
default_role = "user"

[[auth.issuers]]
issuer = "local"
jwks_url = "http://127.0.0.1:8080/keys"
audience = "here"
"""
    )
    first, second = load(str(file), environ={}).auth.issuers
    assert first == IssuerConfig(
        issuer="https://i", jwks_url="https://i/keys", audience="here", role_claim="groups", roles={"admins": "dba"},
        default_role="user",
    )  # fmt: skip
    assert (second.name_claim, second.role_claim, second.roles, second.default_role) == ("sub", "role", {}, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jwks_url": "http://example.com/keys"}, "must be https, or http on this machine"),
        ({"jwks_url": "ftp://example.com/keys"}, "must be https"),
        ({"jwks_url": "keys"}, "must be https"),
        ({"audience": ""}, "audience is empty"),
        ({"issuer": ""}, "issuer must be the claim iss"),
        ({"issuer": "tailrace"}, "issuer must be the claim iss"),
        ({"default_role": "emperor"}, "there is no role 'emperor'"),
        ({"roles": {"x": "emperor"}}, "there is no role 'emperor'"),
        ({"roles": {"x": "system"}}, "an external issuer cannot grant the role system"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_an_issuer_that_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        loaded(auth={"issuers": [{**ISSUER, **change}]})


def test_an_issuer_twice() -> None:
    with pytest.raises(Invalid, match="the same issuer twice"):
        loaded(auth={"issuers": [ISSUER, ISSUER]})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://KEY:Hidden@bucket", "AWS_SECRET_ACCESS_KEY"),
        ("s3://KEY:a/Hidden@bucket/x", "AWS_SECRET_ACCESS_KEY"),
        ("s3a://Hidden@bucket", "AWS_SECRET_ACCESS_KEY"),
        ("s3://KEY:Hidden/bucket", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/x?secret=Hidden", "not the URL of a bucket"),
        ("https://key:Hidden@bucket", "does not support https://"),
        ("s3://", "not the URL of a bucket"),
        ("file://elsewhere/x", "three slashes"),
        ("", "is empty"),
    ],
)
def test_a_bad_url_of_cold_storage_is_reported_at_the_start_without_its_keys(url: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        loaded(environ={"TAILRACE_COLD_URL": url})
    assert "Hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["/srv/a@b:c", "cold", "file:///srv/cold", "s3://bucket", "s3a://bucket/a/b"])
def test_urls_of_cold_storage(url: str) -> None:
    assert loaded(environ={"TAILRACE_COLD_URL": url}).cold.url == url


def test_the_settings_are_checked_without_what_reads_cold_storage() -> None:
    program = (
        "import sys; from tailrace.config import load; load(environ={'TAILRACE_COLD_URL': 's3://b'}); "
        "assert not {'deltalake', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
