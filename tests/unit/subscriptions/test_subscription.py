"""The rules of subscriptions: patterns, configuration, where webhooks may go, links, wakes, retries, tokens."""

from __future__ import annotations

import ipaddress
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import limits
from tailrace.errors import Conflict, Fenced, Invalid, Unauthenticated
from tailrace.log.entry import Log
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions import wake_tokens, webhook
from tailrace.subscriptions.backoff import backoff_ms
from tailrace.subscriptions.routing import Routes
from tailrace.subscriptions.subscription import BEFORE_FIRST, Link, Pattern, Subscription, SubscriptionSettings
from tailrace.subscriptions.webhook import WebhookRules

replace = msgspec.structs.replace

NOW_MS = 1_700_000_000_000
PRODUCTION = WebhookRules()
DEV = WebhookRules(allow_loopback=True)
PRIVATE = WebhookRules(allow_private=True)


def subscription(**changes: object) -> Subscription:
    row = Subscription(
        id="s", kind=rules.WEBHOOK, pattern="events/*", webhook_url="https://w.example/", wake_stream=None,
        lease_ms=30_000, description=None, created_ms=NOW_MS, digest="", base_url="http://x/v1/stream", log_floor=0,
        links=0, generation=0, wake_id=None, snapshot=None, holder=None, lease_until_ms=None, retries=0,
        next_attempt_ms=None,
    )  # fmt: skip
    return replace(row, **changes)


def log(number: int, *, start: int = 0, tail: int = 0) -> Log:
    return Log(number, "stream/a", None, 0, start, tail, NOW_MS, 0, 0, 0)


# -- patterns


def matches_simply(pattern: list[str], path: list[str]) -> bool:
    """What a pattern means, by its definition."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_simply(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and matches_simply(pattern[1:], path[1:])


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=7),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8),
)
def test_a_pattern_matches_what_its_definition_says(pattern: list[str], path: list[str]) -> None:
    assert Pattern("/".join(pattern)).matches("/".join(path)) == matches_simply(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("events/**", "events", True),
        ("events/**", "events/a/b", True),
        ("**", "anything/at/all", True),
        ("**/done", "done", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/b/c", False),
        ("a/%2A", "a/*", True),
        ("a/%2a", "a/b", False),
        ("a.b", "axb", False),
    ],
)
def test_patterns_by_example(pattern: str, path: str, matches: bool) -> None:
    assert Pattern(pattern).matches(path) is matches


def test_no_pattern_takes_long() -> None:
    pattern = Pattern("/".join(["**", "a"] * 32))
    path = "/".join(["a"] * 512 + ["b"])
    began = time.thread_time()
    assert not any(pattern.matches(path) for _ in range(20))
    assert time.thread_time() - began < 10  # backtracking would take longer than the universe


def test_what_a_pattern_says_of_all_it_matches() -> None:
    assert (Pattern("a/b/*/c").head, Pattern("a/b/*/c").prefix) == ("a", "a/b")
    assert (Pattern("**/c").head, Pattern("**/c").prefix) == (None, "")
    assert Pattern("a/b").prefix == "a/b"


@given(
    st.dictionaries(
        st.sampled_from("stuv"),
        st.tuples(
            st.none() | st.sampled_from(["a/*", "**", "a/**", "b", "*/b", "a/b"]),
            st.lists(st.sampled_from(["a", "a/b", "b"]), max_size=2),
        ),
    ),
    st.sampled_from(["a", "b", "a/b", "a/b/c", "c/b"]),
    st.sampled_from("stuv"),
)
def test_routes_find_just_who_follows(
    followers: dict[str, tuple[str | None, list[str]]], path: str, removed: str
) -> None:
    routes = Routes()
    for name, (pattern, named) in followers.items():
        routes.put(name, "x/y", ["a", "b"])
        routes.of(path)
        routes.put(name, pattern, named)
    expected = {
        name
        for name, (pattern, named) in followers.items()
        if path in named or (pattern is not None and Pattern(pattern).matches(path))
    }
    assert routes.of(path) == routes.of(path) == tuple(sorted(expected))
    routes.remove(removed)
    assert routes.of(path) == tuple(sorted(expected - {removed}))
    assert len(routes) == len(followers.keys() - {removed})


def test_a_subscription_never_follows_its_own_wake_stream() -> None:
    row = subscription(kind=rules.PULL_WAKE, pattern="**", wake_stream="wake/pool")
    assert rules.follows(row, "wake/other")
    assert not rules.follows(row, "wake/pool")


# -- configuration

HOOK = {"kind": "webhook", "webhook_url": "https://w.example/"}
PULL = {"kind": "pull-wake", "wake_stream": "wake/pool"}


def test_settings_are_normalised() -> None:
    settings = rules.normalised(
        SubscriptionSettings(**HOOK, pattern="/events/*/", streams=("/b/", "a", "b"), wake_stream="ignored by webhooks")
    )
    assert settings == SubscriptionSettings(**HOOK, pattern="events/*", streams=("a", "b"))
    pull = rules.normalised(SubscriptionSettings(**PULL, streams=("a",), webhook_url="ftp://ignored"))
    assert pull == SubscriptionSettings(**PULL, streams=("a",))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "carrier-pigeon", "pattern": "a"}, "type"),
        ({"kind": "webhook", "pattern": "a"}, "webhook.url"),
        ({"kind": "pull-wake", "pattern": "a"}, "wake_stream"),
        ({**HOOK}, "pattern and streams"),
        ({**HOOK, "pattern": "a", "lease_ms": 999}, "lease_ttl_ms"),
        ({**HOOK, "pattern": "a", "lease_ms": 600_001}, "lease_ttl_ms"),
        ({**HOOK, "pattern": "a//b"}, "pattern"),
        ({**HOOK, "pattern": "a/b*"}, "pattern"),
        ({**HOOK, "pattern": "a/***"}, "pattern"),
        ({**HOOK, "pattern": "__ds/*"}, "pattern"),
        ({**HOOK, "pattern": "/".join("a" * 65)}, "pattern"),
        ({**HOOK, "pattern": "a/\x00"}, "pattern"),
        ({**HOOK, "streams": ("__ds/x",)}, "streams"),
        ({**HOOK, "streams": ("",)}, "streams"),
        ({**PULL, "streams": ("wake/pool",)}, "wake_stream"),
        ({"kind": "pull-wake", "wake_stream": "a//b", "pattern": "a"}, "wake_stream"),
        ({**HOOK, "pattern": "a", "description": "x" * 5000}, "description"),
    ],
)
def test_wrong_settings_are_refused_with_the_field(settings: dict[str, object], named: str) -> None:
    with pytest.raises(Invalid, match=named.replace(".", r"\.")) as raised:
        rules.normalised(SubscriptionSettings(**settings))  # type: ignore[arg-type]
    assert raised.value.code == "INVALID_REQUEST"


def test_the_digest_covers_every_setting() -> None:
    one = SubscriptionSettings(kind="webhook", pattern="a", streams=("x",), webhook_url="https://a/", lease_ms=1000)
    changes: list[dict[str, object]] = [
        {"kind": "pull-wake"}, {"pattern": "b"}, {"streams": ("y",)}, {"webhook_url": "https://b/"},
        {"wake_stream": "w"}, {"lease_ms": 1001}, {"description": "d"},
    ]  # fmt: skip
    digests = {rules.digest(replace(one, **change)) for change in changes}
    assert len(digests | {rules.digest(one)}) == len(changes) + 1
    assert len(changes) == len(SubscriptionSettings.__struct_fields__)
    assert rules.digest(replace(one)) == rules.digest(one)


@pytest.mark.parametrize("text", ["", "x" * 257, "a\nb"])
def test_ids_and_workers_are_bounded(text: str) -> None:
    with pytest.raises(Invalid):
        rules.check_id(text)
    if text != "a\nb":
        with pytest.raises(Invalid):
            rules.check_worker(text)


# -- where webhooks may go


@pytest.mark.parametrize(
    "url",
    [
        "https://worker.example/hooks",
        "https://worker.example",
        "https://worker.example?x=1",
        "HTTPS://Worker.Example:8443/a/b%20c?d=e",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/x",
        "https://xn--bcher-kva.example/",
    ],
)
def test_public_https_is_taken(url: str) -> None:
    for allowed in (PRODUCTION, DEV, PRIVATE):
        assert webhook.parse(url, allowed).scheme == "https"


def test_the_parts_of_a_url() -> None:
    target = webhook.parse("https://Worker.Example:8443?x=1", PRODUCTION)
    assert target == webhook.WebhookTarget("https", "worker.example", 8443, "/?x=1", "Worker.Example:8443")
    assert webhook.parse("https://[2606:4700::1111]/x", PRODUCTION).host == "2606:4700::1111"
    assert webhook.parse("https://w.example./", PRODUCTION).host == "w.example"


def test_the_origin_shows_no_secret() -> None:
    assert webhook.parse("https://w.example:8443/hook/s3cret?key=s3cret", PRODUCTION).origin == "https://w.example:8443"


LOCAL = [
    "https://localhost/",
    "https://localhost./",
    "https://sub.localhost/",
    "https://printer.local/",
    "https://metadata.google.internal/",
    "https://127.0.0.1/",
    "https://127.8.9.1/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://0.0.0.0/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://192.0.2.1/",
    "https://192.0.0.8/",
    "https://192.0.0.192/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://[fec0::1]/",
    "https://[3fff::1]/",
    "https://[2001:db8::1]/",
    "https://[100::1]/",
    "https://[64:ff9b:1::1]/",
    "https://[64:ff9b::c058:6301]/",
    "https://[2002:c058:6301::]/",
    "https://worker/",
    "https://worker./",
    "https://worker.home/",
    "https://worker.home.arpa/",
    "https://worker.localdomain/",
    "https://worker.default.svc/",
    "https://worker.default.svc.cluster.local/",
    "https://[::]/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:a00:1::1]/",
    "https://[fe80::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[ff02::1]/",
]
DISGUISED = [
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0x7f000001/",
    "https://017700000001/",
    "https://127.1/",
    "https://0177.0.0.1/",
    "https://127.0.0.01/",
    "https://127.0.0.1./x/../",
    "https://1.2.3.4.5/",
    "https://example.0x1/",
    "https://１２７.0.0.1/",
    "https://127。0。0。1/",
    "https://%31%32%37.0.0.1/",
    "https://exa mple.com/",
    "https://example.com\\@10.0.0.1/",
    "https://example.com\t/",
    "https://user@example.com/",
    "https://user:secret@example.com/",
    "https://example.com@10.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com/#",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:/",
    "https://example.com:80:80/",
    "https://[fe80::1%25eth0]/",
    "https://[::1/",
    "https://[1.2.3.4]/",
    "https:///path",
    "https://",
    "https:example.com",
    "//example.com/",
    "example.com",
    "",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "https://-/" + "x" * 2048,
    "https://" + "a" * 64 + ".example/",
    "https://a..example/",
]


@pytest.mark.parametrize("url", LOCAL + DISGUISED + ["http://worker.example/", "http://8.8.8.8/"])
def test_everything_else_is_refused_in_production(url: str) -> None:
    with pytest.raises(Invalid) as raised:
        webhook.parse(url, PRODUCTION)
    assert raised.value.code == "WEBHOOK_URL_REJECTED"
    assert raised.value.status == 400


@pytest.mark.parametrize("url", LOCAL + DISGUISED + ["http://10.0.0.1/hook", "http://[::1]/", "http://w.example/"])
def test_dev_adds_only_http_to_localhost(url: str) -> None:
    with pytest.raises(Invalid):
        webhook.parse(url, DEV)


@pytest.mark.parametrize(
    "url", ["http://localhost:4000/x", "http://127.0.0.1:80/", "http://127.4.5.6/", "http://LOCALHOST"]
)
def test_http_to_localhost_is_for_dev_only(url: str) -> None:
    assert webhook.parse(url, DEV).names_loopback
    for allowed in (PRODUCTION, PRIVATE):
        with pytest.raises(Invalid):
            webhook.parse(url, allowed)


def test_private_networks_can_be_allowed_but_not_this_machine_nor_its_metadata() -> None:
    taken = []
    for url in LOCAL:
        try:
            webhook.parse(url, PRIVATE)
            taken.append(url)
        except Invalid:
            pass
    assert taken == [
        "https://printer.local/",
        "https://metadata.google.internal/",  # its address is link-local and refused when it is called
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://100.64.0.1/",
        "https://192.0.2.1/",
        "https://192.0.0.8/",
        "https://192.88.99.1/",
        "https://198.18.0.1/",
        "https://[fec0::1]/",
        "https://[3fff::1]/",
        "https://[2001:db8::1]/",
        "https://[64:ff9b::c058:6301]/",
        "https://[2002:c058:6301::]/",
        "https://worker/",
        "https://worker./",
        "https://worker.home/",
        "https://worker.home.arpa/",
        "https://worker.localdomain/",
        "https://worker.default.svc/",
        "https://worker.default.svc.cluster.local/",
        "https://[::ffff:10.0.0.1]/",
        "https://[2002:a00:1::1]/",
        "https://[fc00::1]/",
    ]
    with pytest.raises(Invalid, match="not https"):
        webhook.parse("http://10.0.0.1/", PRIVATE)


@pytest.mark.parametrize(
    ("url", "address", "allowed", "taken"),
    [
        ("https://w.example/", "8.8.8.8", PRODUCTION, True),
        ("https://w.example/", "127.0.0.1", PRODUCTION, False),
        ("https://w.example/", "127.0.0.1", DEV, False),
        ("https://w.example/", "10.1.2.3", PRODUCTION, False),
        ("https://w.example/", "10.1.2.3", PRIVATE, True),
        ("https://w.example/", "169.254.169.254", PRIVATE, False),
        ("https://w.example/", "::1", PRIVATE, False),
        ("https://w.example/", "2001:1::7", PRODUCTION, False),  # private by the rules of newer Pythons only
        ("https://w.example/", "2606:4700::1", PRODUCTION, True),
        ("http://localhost/", "127.0.0.1", DEV, True),
        ("http://localhost/", "::1", DEV, True),
        ("http://localhost/", "10.0.0.1", DEV, False),
        ("http://localhost/", "169.254.169.254", DEV, False),
    ],
)
def test_what_a_name_resolves_to_is_checked_again(url: str, address: str, allowed: WebhookRules, taken: bool) -> None:
    target = webhook.parse(url, allowed)
    if taken:
        webhook.check_address(target, ipaddress.ip_address(address), allowed)
    else:
        with pytest.raises(Invalid, match="not a public address"):
            webhook.check_address(target, ipaddress.ip_address(address), allowed)


@given(st.ip_addresses())
def test_no_address_is_taken_that_is_not_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    target = webhook.parse("https://w.example/", PRODUCTION)
    try:
        webhook.check_address(target, address, PRODUCTION)
    except Invalid:
        return
    if address.version == 6 and address.sixtofour is not None:
        address = address.sixtofour  # where it leads; some versions of Python call all of these private
    local = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    assert not local


@given(st.text(max_size=40) | st.from_regex(r"https?://[\x20-\x7e]{0,30}", fullmatch=True))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        target = webhook.parse(text, PRODUCTION)
    except Invalid:
        return
    assert target.host
    assert target.target.startswith("/")
    assert not set(target.authority) & set("@/\\# ")


# -- links


def test_a_link_is_bound_to_its_streams_log() -> None:
    link = Link("s", "a", 0, 1, 7, 40)
    assert rules.settled(link, log(7)) is link
    assert rules.settled(link, None) is None
    assert rules.settled(link, log(9)) == Link("s", "a", 0, 1, 9, BEFORE_FIRST)


def test_an_explicit_link_outlives_its_stream() -> None:
    link = Link("s", "a", 1, 0, 7, 40)
    gone = rules.settled(link, None)
    assert gone == Link("s", "a", 1, 0, 0, 0)
    assert rules.settled(gone, None) is gone
    assert rules.settled(gone, log(9)) == rules.settled(link, log(9)) == Link("s", "a", 1, 0, 9, BEFORE_FIRST)


@pytest.mark.parametrize(
    ("acked", "start", "tail", "pending"),
    [(BEFORE_FIRST, 0, 0, False), (BEFORE_FIRST, 0, 5, True), (BEFORE_FIRST, 5, 5, False), (0, 0, 0, False),
     (5, 0, 5, False), (4, 0, 5, True), (3, 5, 5, True)],
)  # fmt: skip
def test_pending_means_past_what_was_acked(acked: int, start: int, tail: int, pending: bool) -> None:
    state = rules.state(Link("s", "a", 0, 1, 7, acked), log(7, start=start, tail=tail))
    assert (state.pending, state.tail) == (pending, tail)


@pytest.mark.parametrize(("acked", "shown"), [(BEFORE_FIRST, 3), (0, 0), (4, 4)])
def test_before_anything_was_acked_the_worker_reads_from_the_start(acked: int, shown: int) -> None:
    assert rules.state(Link("s", "a", 0, 1, 7, acked), log(7, start=3, tail=5)).acked == shown


@pytest.mark.parametrize(
    ("link", "stream", "position", "why"),
    [
        (None, log(7, tail=9), 5, "does not follow"),
        (Link("s", "a", 0, 1, 7, 3), None, 5, "was deleted"),
        (Link("s", "a", 0, 1, 6, 3), log(7, tail=9), 5, "recreated"),
        (Link("s", "a", 0, 1, 7, 6), log(7, tail=9), 5, "behind"),
        (Link("s", "a", 0, 1, 7, 3), log(7, tail=4), 5, "beyond the tail"),
        (Link("s", "b", 0, 1, 7, 3), log(7, tail=9), 5, "recreated"),
    ],
)
def test_acks_that_are_refused(link: Link | None, stream: Log | None, position: int, why: str) -> None:
    path = link.path if link is not None else "a"
    with pytest.raises(Conflict, match=why) as raised:
        rules.judge_ack(link, stream, path, position, {"b": (5, 9)})
    assert (raised.value.status, raised.value.code) == (409, "INVALID_OFFSET")


def test_acks_that_count() -> None:
    for position in (3, 5, 9):
        rules.judge_ack(Link("s", "a", 0, 1, 7, 3), log(7, tail=9), "a", position, {"a": (7, 9)})


# -- wakes


def test_the_life_of_a_webhook_wake() -> None:
    row = rules.woken(subscription(), "w_1", {"a": (1, 5)}, NOW_MS)
    assert (row.generation, row.wake_id, row.lease_until_ms) == (1, "w_1", NOW_MS + 30_000)
    assert rules.due(row) == rules.DueStep(NOW_MS, rules.DELIVER)
    assert rules.snapshot_of(row) == {"a": (1, 5)}
    failed = rules.failed(row, NOW_MS, 0.5)
    assert rules.due(failed) == rules.DueStep(NOW_MS + 1000, rules.DELIVER)
    assert rules.status(failed) == "failed"
    delivered = rules.delivered(failed)
    assert rules.due(delivered) == rules.DueStep(NOW_MS + 30_000, rules.EXPIRE)
    assert rules.status(delivered) == "active"
    extended = rules.heartbeat(failed, NOW_MS + 10_000)
    assert rules.due(extended) == rules.DueStep(NOW_MS + 40_000, rules.EXPIRE)
    idle = rules.idle(extended)
    assert rules.due(idle) is None
    assert idle == replace(subscription(), generation=1)


def test_the_life_of_a_pull_wake() -> None:
    row = rules.woken(subscription(kind=rules.PULL_WAKE), "w_1", {"a": (1, 5)}, NOW_MS)
    assert (row.lease_until_ms, rules.due(row)) == (None, rules.DueStep(NOW_MS, rules.ANNOUNCE))
    assert rules.due(rules.delivered(row)) is None
    claimed = rules.claimed(row, "worker", {}, NOW_MS)
    assert (claimed.holder, rules.due(claimed)) == ("worker", rules.DueStep(NOW_MS + 30_000, rules.EXPIRE))
    assert not rules.lapsed(claimed, NOW_MS + 29_999)
    assert rules.lapsed(claimed, NOW_MS + 30_000)


def test_only_the_wake_in_flight_may_speak() -> None:
    row = rules.woken(subscription(generation=6), "w_1", {}, NOW_MS)
    rules.fence(row, wake_id="w_1", generation=7, now_ms=NOW_MS + 29_999)
    for wake_id, generation, now_ms in (("w_1", 6, 0), ("w_2", 7, 0), ("w_1", 8, 0), ("w_1", 7, 30_000)):
        with pytest.raises(Fenced):
            rules.fence(row, wake_id=wake_id, generation=generation, now_ms=NOW_MS + now_ms)
    with pytest.raises(Fenced):
        rules.fence(rules.idle(row), wake_id="w_1", generation=7, now_ms=NOW_MS)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_retries_back_off_from_one_second_to_sixty_with_a_fifth_of_jitter(retries: int, random: float) -> None:
    middle_ms = min(1000 * 2 ** min(retries - 1, 10), 60_000)
    assert middle_ms * 0.8 - 1 <= backoff_ms(retries, random) <= middle_ms * 1.2 + 1
    assert backoff_ms(retries, 0.5) == middle_ms


def test_the_limits_are_the_protocols() -> None:
    assert (limits.LEASE_MS_MIN, limits.LEASE_MS, limits.LEASE_MS_MAX) == (1_000, 30_000, 600_000)
    assert (limits.WEBHOOK_RETRY_S_MIN, limits.WEBHOOK_RETRY_S_MAX, limits.WEBHOOK_RETRY_JITTER) == (1.0, 60.0, 0.2)


# -- tokens

KEY = b"k" * 32


def test_a_token_says_what_it_was_made_for() -> None:
    token = wake_tokens.issue(KEY, "sub/ä", 7, "w_1", NOW_MS)
    assert wake_tokens.verify(KEY, token, "sub/ä", NOW_MS) == wake_tokens.WakeToken(
        "sub/ä", 7, "w_1", NOW_MS // 1000 + limits.WAKE_TOKEN_S
    )


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é.ü.ß", "\ud800", "x" * 100_000])
def test_no_other_text_is_a_token(token: str) -> None:
    with pytest.raises(Unauthenticated) as raised:
        wake_tokens.verify(KEY, token, "s", NOW_MS)
    assert (raised.value.status, raised.value.code) == (401, "TOKEN_INVALID")


@given(st.data())
def test_a_changed_token_is_none(data: st.DataObject) -> None:
    token = wake_tokens.issue(KEY, "s", 7, "w_1", NOW_MS)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != token[at]))
    with pytest.raises(Unauthenticated):
        wake_tokens.verify(KEY, token[:at] + other + token[at + 1 :], "s", NOW_MS)


def test_a_token_is_for_one_subscription_one_key_and_one_day() -> None:
    token = wake_tokens.issue(KEY, "s", 7, "w_1", NOW_MS)
    for key, name in ((b"x" * 32, "s"), (KEY, "t")):
        with pytest.raises(Unauthenticated) as raised:
            wake_tokens.verify(key, token, name, NOW_MS)
        assert raised.value.code == "TOKEN_INVALID"
    with pytest.raises(Unauthenticated) as raised:
        wake_tokens.verify(KEY, token, "s", NOW_MS + limits.WAKE_TOKEN_S * 1000)
    assert raised.value.code == "TOKEN_EXPIRED"
