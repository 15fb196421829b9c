"""Documents of token issuers, from a server on a loopback socket that gives many kinds of bad answers."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import certifi
import pytest

from epochal.errors import LauncherUnavailable, OptionError
from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.kubernetes.pod_settings import TokenIssuer, read_kubernetes_settings
from epochal.service.runtime.issuer_documents import MOST_BYTES, IssuerDocuments
from epochal.service.runtime.person_tokens import PersonTokens, _discovered
from epochal.service.runtime.pod_tokens import PodTokens

Answer = Callable[[socket.socket, bytes], None]


@contextmanager
def answering(answer: Answer | bytes) -> Iterator[str]:
    """URL of a server that gives this answer to its connections, one at a time."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += connection.recv(1 << 16)
                    connection.sendall(answer) if isinstance(answer, bytes) else answer(connection, request)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/keys"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def dripping(connection: socket.socket, _request: bytes) -> None:
    """Sends single bytes, so that no read takes long."""
    with suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            connection.sendall(b"x")
            threading.Event().wait(0.02)


def test_an_issuer_document_is_read(tmp_path: Path) -> None:
    with answering(http(b'{"keys": []}')) as url:
        assert IssuerDocuments().document(url) == {"keys": []}


def test_documents_are_requested_with_any_media_type() -> None:
    """Kubernetes serves keys as `application/jwk-set+json`, and answers 406 if only `application/json` is accepted."""
    requests: list[bytes] = []

    def keeping(connection: socket.socket, request: bytes) -> None:
        requests.append(request)
        connection.sendall(http(b"{}", "200 OK", "Content-Type: application/jwk-set+json"))

    with answering(keeping) as url:
        IssuerDocuments().document(url)
    assert b"\r\nAccept: */*\r\n" in requests[0]


BAD: dict[str, Answer | bytes] = {
    "a list": http(b"[]"),
    "not JSON": http(b"<html>"),
    "nested too deeply": http(b"[" * 500_000),
    "not UTF-8": http(b"\xff"),
    "too large": http(json.dumps({"keys": "x" * MOST_BYTES}).encode()),
    "another status": http(b"{}", "404 Not Found"),
    "a redirect": http(b"{}", "302 Found", "Location: http://127.0.0.1:1/elsewhere"),
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "truncated": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
    "empty": b"",
    "slow": dripping,
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_answers_raise_expected_errors(bad: str) -> None:
    with answering(BAD[bad]) as url:
        with pytest.raises((OSError, ValueError)):
            IssuerDocuments(seconds=0.5).document(url)
        pods = PodTokens(TokenIssuer(issuer="https://cluster.example", keys=url, authority=None, token=None))
        pods._documents = IssuerDocuments(seconds=0.5)
        with pytest.raises(LauncherUnavailable, match="cannot be read from the cluster"):
            pods._published()


@pytest.mark.parametrize(
    "url",
    ["http://cluster.example/keys", "ftp://127.0.0.1/keys", "file:///etc/passwd", "keys", "http://[", "https://a:b/"],
)
def test_keys_require_https_or_this_machine(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"URL|https"):
        IssuerDocuments().document(url)
    file = tmp_path / "kubernetes.json"
    file.write_text(json.dumps({"image": "epochal", "issuer": {"keys": url}}))
    with pytest.raises(OptionError, match=r"issuer\.keys"):
        read_kubernetes_settings(file)


def test_the_documents_of_an_issuer_share_one_timeout() -> None:
    def slow(connection: socket.socket, request: bytes) -> None:
        time.sleep(0.6)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with answering(slow) as url:
        document = IssuerDocuments(seconds=1.0).documents()
        began = time.monotonic()
        assert document(url) == {}
        with pytest.raises(TimeoutError):
            document(url)
        assert time.monotonic() - began < 1.2


@pytest.mark.parametrize("keys", ["http://127.0.0.1:8080/internal", "http://[::1]/keys", "HTTP://localhost/keys"])
def test_a_remote_provider_cannot_name_keys_on_this_machine(keys: str) -> None:
    """Otherwise the control plane would send requests to local services, at a path that the provider chooses."""
    issuer = "https://idp.example"
    with pytest.raises(ValueError, match="refers to keys on this machine"):
        _discovered(issuer, lambda url: {"issuer": issuer, "jwks_uri": keys})
    local = "http://localhost:8080"
    assert _discovered(local, lambda url: {"issuer": local, "jwks_uri": keys}) == keys


def test_an_authority_file_without_certificates_is_refused(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.crt", tmp_path / "text.crt"
    text.write_text("no certificate")
    oidc = {"issuer": "https://idp.example", "audience": "epochal", "roles": {}}
    for path in (missing, text, tmp_path):
        with pytest.raises(OptionError, match=re.escape(str(path))):
            IssuerDocuments(path)
        with pytest.raises(OptionError, match=re.escape(str(path))):
            PersonTokens(OidcSettings.model_validate({**oidc, "authority": str(path)}))
        with pytest.raises(OptionError, match=re.escape(str(path))):
            PodTokens(TokenIssuer(issuer="https://cluster.example", authority=path))


def test_a_deleted_authority_is_not_replaced_by_that_of_the_system(tmp_path: Path) -> None:
    authority = tmp_path / "authority.crt"
    shutil.copy(certifi.where(), authority)
    documents = IssuerDocuments(authority)
    authority.unlink()
    with pytest.raises(OSError, match=re.escape(str(authority))):
        documents.document("https://127.0.0.1:1/keys")


def test_the_authority_of_a_pod_is_the_default_only_in_a_pod(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    assert TokenIssuer.model_construct(_fields_set=set(), authority=authority).trust is None
    authority.touch()
    assert TokenIssuer.model_construct(_fields_set=set(), authority=authority).trust == authority
