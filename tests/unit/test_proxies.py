"""Addresses of callers behind proxies."""

from __future__ import annotations

import pytest

from epochal.errors import OptionError
from epochal.service.domain.proxies import TrustedProxies, read_trusted_proxies

PROXIES = TrustedProxies(read_trusted_proxies("10.0.0.0/8, 127.0.0.1,fd00::/8"))


@pytest.mark.parametrize("peer", ["10.1.2.3", "127.0.0.1", "::ffff:10.1.2.3", "fd00::1"])
def test_named_proxies_are_trusted(peer: str) -> None:
    assert PROXIES.trusts(peer)


@pytest.mark.parametrize("peer", ["11.0.0.1", "::1", "localhost", "", "10.1.2.3%eth0", "１０.1.2.3"])
def test_no_other_peer_is_trusted(peer: str) -> None:
    assert not PROXIES.trusts(peer)
    assert not TrustedProxies(()).trusts(peer)


@pytest.mark.parametrize(
    ("forwarded", "caller"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
        (["198.51.100.1", "192.0.2.7, 10.9.9.9"], "192.0.2.7"),
        (["192.0.2.7:4711"], "192.0.2.7"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:DB8:0::1"], "2001:db8::1"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["10.2.2.2, 10.3.3.3"], "10.2.2.2"),
        (["192.0.2.7, unknown"], "10.0.0.1"),
        (["192.0.2.7, unknown, 10.3.3.3"], "10.3.3.3"),
        (["192.0.2.7, "], "10.0.0.1"),
        (["'; drop table audit"], "10.0.0.1"),
        (["192.0.2.7%0d%0a"], "10.0.0.1"),
        (["1" * 5000], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_not_a_trusted_proxy_is_the_caller(forwarded: list[str], caller: str) -> None:
    assert PROXIES.caller("10.0.0.1", forwarded) == caller


@pytest.mark.parametrize(
    "text", ["ingress", "10.0.0.1/8", "*", "10.0.0.0/33", "10.0.0.1,,", "0.0.0.0/0", "::/0", "0x7f.1"]
)
def test_values_other_than_addresses_and_networks_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--trusted-proxies"):
        read_trusted_proxies(text)


def test_no_proxy_is_trusted_by_default() -> None:
    assert read_trusted_proxies("") == read_trusted_proxies("  ") == ()
