"""Addresses of servers that connectors refuse: link-local addresses and metadata services."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from epochal.backends.hdfs.address import address as hdfs_address
from epochal.connectors import dbms, files, hdfs, kafka
from epochal.errors import OptionError

LINK_LOCAL = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "169.254.43518",
    "１６９。254。169。254",
    "%31%36%39.254.169.254",
    "[fe80::1]",
    "[::ffff:169.254.169.254]",
    "[::169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
]


@pytest.mark.parametrize(
    "host", [*LINK_LOCAL, "100.100.100.200", "[fd00:ec2::254]", "metadata.google.internal", "metadata", "METADATA."]
)
def test_connectors_refuse_metadata_services(host: str) -> None:
    """Builds connect to servers from the control plane's machine, whose metadata service returns credentials."""
    named: list[Callable[[], Any]] = [
        lambda: kafka.source(f"kafka:9092,{host}:80", "t"),
        lambda: kafka.source(f"kafka:9092 SASL_SSL://{host}:80", "t"),
        lambda: kafka.source(host, "t"),
        lambda: kafka.sink(f"{host}:80", "t"),
        lambda: hdfs.source(f"http://{host}:80", "/latest/meta-data"),
        lambda: hdfs.sink(f"http://namenode:9870;http://{host}", "/latest"),
        lambda: dbms.source(f"postgresql://me@{host}:80/x", "t", "id"),
        lambda: dbms.sink(f"mysql://me@{host}/x", "t"),
        lambda: files.source(f"http://{host}/latest/*.json", "json", "a int"),
        lambda: files.source(f"zip://a.json::http://{host}/a.zip", "json", "a int"),
        lambda: files.table(f"simplecache::http://me@{host}:80/x.json", "json", "a int"),
    ]
    for make in named:
        with pytest.raises(OptionError, match=r"is a link-local address|is not a URL"):
            make()


def test_each_host_of_a_database_url_is_checked() -> None:
    with pytest.raises(OptionError, match="is a link-local address"):
        dbms.source("postgresql://me@db.example,169.254.169.254/x", "t", "id")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "db.example", "kafka-0.kafka"])
def test_connectors_accept_local_and_private_servers(host: str) -> None:
    kafka.source(f"{host}:9092", "t", schema="a int")
    kafka.source(f"PLAINTEXT://{host}:9092, {host}", "t", schema="a int")
    hdfs.source(f"http://{host}:9870", "/in", schema="a int")
    dbms.source(f"postgresql://me@{host}:5432/x", "t", "id")
    files.source(f"http://{host}:80/in", "json", "a int")


@pytest.mark.parametrize(
    "path", ["s3a://metadata/in", "gs://instance-data/in", "/data/metadata", "file:///metadata/in"]
)
def test_bucket_and_folder_names_are_not_checked_as_hosts(path: str) -> None:
    files.source(path, "json", "a int")


@pytest.mark.parametrize("status", [307, 302])
def test_hdfs_follows_no_redirect_to_a_metadata_service(status: int) -> None:
    """A NameNode redirects reads to DataNodes, and chooses their addresses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://0xa9fea9fe/latest/meta-data/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        client = hdfs_address("hdfs.source", f"http://127.0.0.1:{server.server_port}").connect()
        with pytest.raises(OptionError, match="is a link-local address"), client.read("/in/a"):
            pass
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
