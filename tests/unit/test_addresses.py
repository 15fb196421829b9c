"""Addresses that the control plane is not to be sent to, in every form in which somebody may write them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from epochal.connectors import dbms, hdfs, kafka
from epochal.errors import InvalidInput, OptionError
from epochal.service.domain.addresses import check_address, check_host
from epochal.service.runtime.webhooks import address_of

CLOSED = [
    "169.254.169.254",
    "169.254.0.1",
    "127.0.0.1",
    "0.0.0.0",
    "fe80::1",
    "febf::1",
    "fe80::1%eth0",
    "::1",
    "::",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "fd00:ec2::254",
    "100.100.100.200",
]
WRITTEN_OTHERWISE = ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0", "127.1", "LocalHost."]


@pytest.mark.parametrize("address", CLOSED)
def test_metadata_services_and_this_machine_are_closed(address: str) -> None:
    with pytest.raises(InvalidInput, match="EPOCHAL_WEBHOOKS_LOCAL"):
        check_address(address)


@pytest.mark.parametrize("host", [*CLOSED, *WRITTEN_OTHERWISE, "[::ffff:169.254.169.254]", "a.localhost"])
def test_however_they_are_written(host: str) -> None:
    with pytest.raises(InvalidInput):
        check_host(host)


@pytest.mark.parametrize("host", ["example.com", "10.1.2.3", "192.168.1.7", "93.184.216.34", "1.example"])
def test_others_are_open(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("answers", [["169.254.169.254"], ["93.184.216.34", "fe80::1"]])
def test_a_name_that_means_such_an_address_is_closed_too(answers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked when it is delivered, and what was looked at is what is connected to."""

    async def address() -> str:
        async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, port)) for answer in answers]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await address_of(httpx.URL("http://rebound.example/"), local=False)

    with pytest.raises(InvalidInput, match="own machine or link"):
        asyncio.run(address())


LINKS = ["169.254.169.254", "2852039166", "0xa9fea9fe", "169.254.43518", "[fe80::1]", "[::ffff:169.254.169.254]"]


@pytest.mark.parametrize("host", [*LINKS, "100.100.100.200", "[fd00:ec2::254]", "metadata.google.internal"])
def test_no_connector_asks_the_machine_about_itself(host: str) -> None:
    """A build asks servers, too, on the control plane's machine: not the one that has its credentials."""
    named: list[Callable[[], Any]] = [
        lambda: kafka.source(f"kafka:9092,{host}:80", "t"),
        lambda: kafka.sink(f"{host}:80", "t"),
        lambda: hdfs.source(f"http://{host}:80", "/latest/meta-data"),
        lambda: hdfs.sink(f"http://namenode:9870;http://{host}", "/latest"),
        lambda: dbms.source(f"postgresql://me@{host}:80/x", "t", "id"),
        lambda: dbms.sink(f"mysql://me@{host}/x", "t"),
    ]
    for make in named:
        with pytest.raises(OptionError, match="address of the machine's own link"):
            make()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "db.example", "kafka-0.kafka"])
def test_connectors_reach_servers_of_this_machine_and_of_networks(host: str) -> None:
    kafka.source(f"{host}:9092", "t", schema="a int")
    hdfs.source(f"http://{host}:9870", "/in", schema="a int")
    dbms.source(f"postgresql://me@{host}:5432/x", "t", "id")
