"""Allowed webhook URLs: prevents requests of this server to internal addresses (SSRF).

The rule: the host that is checked is the host that is called. A URL is parsed once, strictly; ambiguous parts (user
names, other spellings of addresses, other alphabets) are rejected. A literal address is checked when the subscription
is created, and every address that a name resolves to is checked again before each call, which then goes to exactly that
address, so that DNS rebinding gains nothing.

Production: https to public addresses. `allow_private` adds private networks, still by https. `allow_loopback` (--dev)
adds http://localhost and http://127.x.x.x.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid

_FORM: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<target>(?:/[^?#]*)?(?:\?[^#]*)?)", re.ASCII
)
_BYTES: Final = re.compile(r"[!$-;=?-\[\]_a-z~]+", re.ASCII)  # visible ASCII without " # < > \ ^ ` { | }
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_NUMERIC: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)", re.ASCII)
_LOCAL_NAMES: Final = (
    "local", "internal", "lan", "intranet", "home", "home.arpa", "localdomain", "svc", "cluster.local",
)  # fmt: skip
# Metadata services of clouds besides 169.254.0.0/16: Azure, Alibaba, Oracle, AWS by IPv6.
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"))
)
# Special-purpose addresses, which no public server has. `ipaddress` knows most of them, depending on the version of
# Python: 3.11 treats site-local addresses and half of 192.0.0.0/24 as public.
_SPECIAL: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
            "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "fec0::/10",
        ),
    )
)  # fmt: skip
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS: Final = {"http": 80, "https": 443}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebhookRules(msgspec.Struct, frozen=True):
    """The addresses that a server's settings allow."""

    allow_loopback: bool = False
    allow_private: bool = False


class WebhookTarget(msgspec.Struct, frozen=True):
    """A webhook URL in parts."""

    scheme: str
    host: str  # lower case, without brackets
    port: int
    target: str  # path and query
    authority: str  # the Host field

    @property
    def literal(self) -> Address | None:
        """The host, if it is an address."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def names_loopback(self) -> bool:
        """Whether the URL explicitly names this machine: localhost or 127.x.x.x."""
        address = self.literal
        return self.host == "localhost" or (isinstance(address, ipaddress.IPv4Address) and address.is_loopback)

    @property
    def origin(self) -> str:
        """The part of the URL that others than its owner may see: path and query often contain a secret."""
        return f"{self.scheme}://{self.authority}"


def parse(url: str, rules: WebhookRules) -> WebhookTarget:
    """The parts of a URL that a subscription may have; raises WEBHOOK_URL_REJECTED."""
    if len(url) > limits.WEBHOOK_URL_BYTES_MAX:
        raise _rejected(f"is longer than {limits.WEBHOOK_URL_BYTES_MAX} bytes; shorten it")
    if "#" in url:
        raise _rejected("has a fragment; leave out # and the text after it")
    form = _FORM.fullmatch(url)
    if form is None:
        raise _rejected("is not an absolute URL; write https://host/path")
    scheme = form["scheme"].lower()
    if scheme not in _PORTS:
        raise _rejected(f"has scheme {scheme!r}; use https")
    if "@" in form["authority"]:
        raise _rejected("has a user name; leave out the part before @")
    if not _BYTES.fullmatch(url):
        raise _rejected("has a space, control, non-ASCII or other forbidden character; percent-encode it")
    authority = _AUTHORITY.fullmatch(form["authority"])
    if authority is None:
        raise _rejected("has no proper host; write a name (in ASCII: xn--... for others) or an address, then :port")
    port = int(authority["port"]) if authority["port"] else _PORTS[scheme]
    if not 1 <= port <= 65535:
        raise _rejected(f"has port {port}; use 1 to 65535")
    host = authority["host"].lower().strip("[]").rstrip(".")
    target = WebhookTarget(scheme, host, port, form["target"] or "/", form["authority"])
    if not target.target.startswith("/"):
        target = msgspec.structs.replace(target, target="/" + target.target)
    _check(target, authority["host"], rules)
    return target


def _check(target: WebhookTarget, written: str, rules: WebhookRules) -> None:
    address = target.literal
    if written.startswith("["):
        if not isinstance(address, ipaddress.IPv6Address):
            raise _rejected(f"has host {written}, which is not an IPv6 address")
    elif address is None:
        _check_name(target.host)
    if target.names_loopback and rules.allow_loopback and target.scheme == "http":
        return
    if target.scheme != "https":
        exception = "; http is taken for localhost and 127.x.x.x only, in --dev" if rules.allow_loopback else ""
        raise _rejected(f"is not https; use https{exception}")
    if address is not None:
        check_address(target, address, rules)
    elif _under(target.host, "localhost") or (not rules.allow_private and _is_local(target.host)):
        raise _rejected(f"has the local name {target.host!r}; use one that is known publicly")


def _is_local(host: str) -> bool:
    """Whether a name is valid in one network only. A single label is completed by the resolver's search list."""
    return "." not in host or any(_under(host, name) for name in _LOCAL_NAMES)


def _under(host: str, name: str) -> bool:
    return host == name or host.endswith("." + name)


def _check_name(host: str) -> None:
    labels = host.split(".")
    if len(host) > 253 or any(not 1 <= len(label) <= 63 for label in labels):
        raise _rejected(f"has host {host[:80]!r}, which is not a name")
    if _NUMERIC.fullmatch(labels[-1]):
        # 2130706433, 0x7f.1 and 0177.0.0.1 all mean 127.0.0.1 to some resolver.
        raise _rejected(f"has host {host[:80]!r}; write an IPv4 address as four decimal numbers without leading zeros")


def check_address(target: WebhookTarget, address: Address, rules: WebhookRules) -> None:
    """Raise unless a call of `target` may go to `address`."""
    real = _unwrapped(address)
    if real.is_loopback and target.names_loopback and target.scheme == "http" and rules.allow_loopback:
        return
    public = real.is_global and not (
        real.is_private or real.is_loopback or real.is_link_local or real.is_multicast or real.is_reserved
        or real.is_unspecified or any(real in network for network in _SPECIAL)
    )  # fmt: skip
    if public and real not in _METADATA:
        return
    never = (
        real.is_loopback or real.is_link_local or real.is_multicast or real.is_unspecified or real in _METADATA
        or real.is_reserved
    )  # fmt: skip
    if rules.allow_private and not never:
        return
    hint = "" if never or rules.allow_private else ", or let private networks in with webhook_allow_private"
    raise _rejected(f"leads to {address}, which is not a public address; use one that is{hint}")


def _unwrapped(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, if traffic goes there."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):  # also ::a.b.c.d, which is deprecated
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _rejected(why: str) -> Invalid:
    return Invalid(f"webhook.url {why}", code="WEBHOOK_URL_REJECTED")
