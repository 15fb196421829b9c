"""Addresses that the control plane and connectors refuse, in every spelling that resolvers and libraries accept."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epochal.errors import InvalidInput
from epochal.service.domain import addresses
from epochal.service.domain.addresses import check_address, check_host, is_of_this_machine
from epochal.service.runtime.webhooks import address_of

REFUSED = [
    "169.254.169.254",
    "169.254.0.1",
    "127.0.0.1",
    "0.0.0.0",
    "0.0.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "fe80::1",
    "febf::1",
    "fe80::1%eth0",
    "ff02::1",
    "::1",
    "::",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "2001:db8::5efe:a9fe:a9fe",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
]
OTHER_SPELLINGS = [
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "0169.0254.0169.0254",
    "169.254.43518",
    "0",
    "127.1",
    "127.0.0.1..",
    "１６９.254.169.254",
    "①⑥⑨.254.169.254",
    "169。254。169。254",
    "169．254｡169.254.",
    "%31%32%37.0.0.1",
    "%2531%2532%2537%252e1",
    "[::ffff:169.254.169.254]",
    "［::1］",
    "[fe80::1%25eth0]",
    "LocalHost.",
    "loc\u00adalhost",
    "local\u200dhost",
    "ＬＯＣＡＬＨＯＳＴ",
    "a.localhost",
    "metadata",
    "ｍｅｔａｄａｔａ",
    "METADATA.google.internal.",
    "metadata。google。internal",
    "instance-data",
]
INVALID = [
    "",
    ".",
    "[]",
    "me@127.0.0.1",
    "127.0.0.1@example.com",
    "example.com/127.0.0.1",
    "example.com\\127.0.0.1",
    "127.0.0.1 example",
    "127.0.0.1%00.example",
    "127.0.0.1:80",
    "１２７.0.0.1：80",
    "%252525252525252531.example",
    "\ufffd.example",
]


@pytest.mark.parametrize("address", REFUSED)
def test_metadata_and_local_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="EPOCHAL_WEBHOOKS_LOCAL"):
        check_address(address)


@pytest.mark.parametrize("host", [*REFUSED, *OTHER_SPELLINGS])
def test_hosts_are_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(InvalidInput, match="EPOCHAL_WEBHOOKS_LOCAL"):
        check_host(host)


@pytest.mark.parametrize("host", INVALID)
def test_invalid_hosts_are_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid host"):
        check_host(host)


ALLOWED = [
    "example.com",
    "bücher.example",
    "xn--bcher-kva.example",
    "under_score.example",
    "metadata.example",
    "1.example",
    "10.1.2.3",
    "192.168.1.7",
    "93.184.216.34",
    "2606:2800:220:1::1",
    "64:ff9b::5db8:d822",
    "64:ff9b:1:0:5d:b8d8:2200:0",
    "2002:5db8:d822::1",
]


@pytest.mark.parametrize("host", ALLOWED)
def test_other_hosts_are_allowed(host: str) -> None:
    check_host(host)


def _short(value: int, parts: int, bases: tuple[int, ...]) -> str:
    """An IPv4 address with this number of parts, as ``inet_aton`` reads it."""
    rest = 8 * (5 - parts)
    numbers = [value >> 24 - 8 * n & 255 for n in range(parts - 1)] + [value & (1 << rest) - 1]
    formats = {8: "0{:o}", 10: "{}", 16: "0x{:x}"}
    return ".".join(formats[base].format(number) for base, number in zip(bases, numbers, strict=False))


_WIDE = {ord(each): chr(ord(each) + 0xFEE0) for each in map(chr, range(0x21, 0x7F))}
_CIRCLED = {ord("0"): "⓪"} | {ord(str(n)): chr(0x245F + n) for n in range(1, 10)}
_CIRCLED |= {ord("a") + n: chr(0x24D0 + n) for n in range(26)}
_EMBEDDED: list[Callable[[int], int]] = [
    lambda value: value,
    lambda value: 0xFFFF << 32 | value,
    lambda value: 0xFFFF << 48 | value,
    lambda value: 0x64FF9B << 96 | value,
    lambda value: 0x2002 << 112 | value << 80 | 1,
    lambda value: 0x20010000 << 96 | 0x41000000 << 64 | value ^ 0xFFFF_FFFF,
]
_LOCAL_NAT64: list[Callable[[int], int]] = [
    lambda value: 0x64FF9B0001 << 80 | value >> 16 << 64 | (value & 0xFFFF) << 40,
    lambda value: 0x64FF9B0001 << 80 | value >> 24 << 64 | (value & 0xFFFFFF) << 32,
    lambda value: 0x64FF9B0001 << 80 | value << 24,
    lambda value: 0x64FF9B0001 << 80 | value,
]
"""One for each prefix length. An address is refused if any of its readings is refused."""


@st.composite
def _spelled(
    draw: Callable[..., Any], values: st.SearchStrategy[int], ambiguous: bool = True
) -> tuple[ipaddress.IPv4Address, str]:
    """An IPv4 address, and a host that denotes it. ``ambiguous``: also spellings with several readings: octal numbers,
    NAT64 with a local prefix, and percent signs in IPv6 addresses, where they begin a zone."""
    value = draw(values)
    if draw(st.booleans()):
        parts = draw(st.integers(1, 4))
        text = _short(
            value, parts, tuple(draw(st.lists(st.sampled_from([10, 16, *[8] * ambiguous]), min_size=4, max_size=4)))
        )
    else:
        text = str(ipaddress.IPv6Address(draw(st.sampled_from(_EMBEDDED + _LOCAL_NAT64 * ambiguous))(value)))
    for position in range(len(text) - 1, -1, -1):
        change = draw(st.integers(0, 11))
        table = {0: _WIDE, 1: _CIRCLED, 2: {ord("."): "。"}, 3: {ord("."): "｡"}}.get(change)
        each = text[position]
        if table is not None:
            each = each.translate(table)
        elif change == 4:
            each = each.upper()
        elif change == 5 and (ambiguous or ":" not in text):
            each = f"%{ord(each):02x}"
        elif change == 6:
            each = f"\u00ad{each}"
        text = text[:position] + each + text[position + 1 :]
    return ipaddress.IPv4Address(value), f"{text}{draw(st.sampled_from(['', '.', '。']))}"


_REFUSED_IPV4 = st.one_of(
    st.integers(0x7F000000, 0x7FFFFFFF), st.integers(0xA9FE0000, 0xA9FEFFFF), st.just(0x646464C8), st.just(0xA83F8110)
)


@given(_spelled(_REFUSED_IPV4))
def test_no_encoding_of_a_refused_address_is_accepted(spelled: tuple[ipaddress.IPv4Address, str]) -> None:
    with pytest.raises(InvalidInput):
        check_host(spelled[1])


@given(_spelled(st.integers(0x01000000, 0xDFFFFFFF), ambiguous=False))
def test_the_encoding_of_other_addresses_does_not_matter(spelled: tuple[ipaddress.IPv4Address, str]) -> None:
    plain, host = spelled
    try:
        check_address(str(plain))
    except InvalidInput:
        with pytest.raises(InvalidInput):
            check_host(host)
    else:
        check_host(host)


@given(
    st.one_of(
        st.text(alphabet="0123456789abcdefx.:%[]｡。１２７①⑥⑨⓪Ⅽ²\u00ad\u200b", max_size=24),
        _spelled(st.integers(0, 0xFFFFFFFF)).map(lambda spelled: spelled[1]),
    )
)
def test_hosts_that_resolve_to_a_refused_address_are_refused(host: str) -> None:
    """The reference is this machine's resolver, without name look-ups."""
    try:
        found = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        return
    assume(bool(host))
    for item in found:
        try:
            check_address(str(item[4][0]))
        except InvalidInput:
            with pytest.raises(InvalidInput):
                check_host(host)


def _resolved(answers: list[str], monkeypatch: pytest.MonkeyPatch, local: bool = False) -> str:
    async def address() -> str:
        async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, port)) for answer in answers]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await address_of(httpx.URL("http://several.example/"), local)

    return asyncio.run(address())


@pytest.mark.parametrize(
    "answers",
    [["169.254.169.254"], ["93.184.216.34", "fe80::1"], ["93.184.216.34", "93.184.216.35", "64:ff9b::7f00:1"]],
)
def test_a_host_name_with_one_refused_address_is_refused(answers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="own machine or link"):
        _resolved(answers, monkeypatch)
    assert _resolved(answers, monkeypatch, local=True) == answers[0]
    assert _resolved(["93.184.216.34"], monkeypatch) == "93.184.216.34"


def own_addresses() -> Iterator[str]:
    """The addresses of this machine's interfaces that are neither loopback nor link-local."""
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                found = ipaddress.ip_address(each.address.partition("%")[0])
                if not found.is_loopback and not found.is_link_local:
                    yield str(found)


def test_every_interface_of_this_machine_is_refused() -> None:
    found = [*own_addresses()]
    for address in found:
        with pytest.raises(InvalidInput, match="own machine"):
            check_address(address)
        if "." in address:
            for spelling in (f"::ffff:{address}", f"64:ff9b::{address}", str(int(ipaddress.ip_address(address)))):
                with pytest.raises(InvalidInput, match="own machine"):
                    check_host(spelling)
    assert not is_of_this_machine(ipaddress.ip_address("93.184.216.34"))
    assert not is_of_this_machine(ipaddress.ip_address("2606:2800:220:1::1"))


_NETWORK_NAMESPACE_PROGRAM = """
import subprocess
from ipaddress import ip_address
from epochal.service.domain.addresses import is_of_this_machine

def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)

def found():
    return [each for each in ADDRESSES if is_of_this_machine(ip_address(each))]

ADDRESSES = ["10.9.8.7", "10.9.8.8", "10.9.9.9", "fd09::7", "10.9.8.9"]
ip("link", "set", "lo", "up")
ip("link", "add", "dummy-9", "type", "veth", "peer", "name", "dummy-8")
ip("link", "set", "dummy-9", "up")
assert found() == [], found()
ip("addr", "add", "10.9.8.7/24", "dev", "dummy-9")
assert found() == ADDRESSES[:1], found()
ip("addr", "add", "10.9.8.8/24", "dev", "dummy-9")
ip("route", "add", "local", "10.9.9.0/24", "dev", "lo")
ip("-6", "addr", "add", "fd09::7/64", "dev", "dummy-9", "nodad")
assert found() == ADDRESSES[:4], found()
for family in ("ipv4", "ipv6"):
    with open(f"/proc/sys/net/{family}/ip_nonlocal_bind", "w") as setting:
        setting.write("1")
assert found() == ["10.9.8.7", "10.9.8.8", "fd09::7"], found()
ip("addr", "del", "10.9.8.8/24", "dev", "dummy-9")
assert found() == ["10.9.8.7", "fd09::7"], found()
print("checked")
"""


def test_addresses_added_to_an_interface_later_are_refused() -> None:
    """In a network namespace: a second address of a subnet, a local route, and non-local binds."""
    command = ["unshare", "--net", "--map-root-user"]
    try:
        subprocess.run([*command, "ip", "link"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a network namespace cannot be created here")
    done = subprocess.run(
        [*command, sys.executable, "-c", _NETWORK_NAMESPACE_PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "checked\n", done.stderr


def test_no_address_is_allowed_when_the_check_cannot_open_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(addresses.socket, "socket", refused)
    with pytest.raises(OSError, match="Too many open files"):
        check_address("93.184.216.34")
