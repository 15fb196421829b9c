"""``epochal up`` with TLS on both ports: clients and drivers of a real control plane."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epochal.client import Client
from epochal.errors import CatalogUnavailable, OptionError
from epochal.testing.servers.control_plane import COMMAND
from epochal.wire.trust import CA_VARIABLE
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

LOOPBACK = "127.0.0.1"


@dataclass
class Authority:
    """A certificate authority."""

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    name: x509.Name = field(default_factory=lambda: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))

    @property
    def file(self) -> Path:
        file = self.folder / "authority.crt"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            own = self._signed(self.name, self.key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
            file.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        return file

    def issue(self, name: str, server: x509.GeneralName | None = None) -> tuple[Path, Path]:
        """Certificate and key of a server, by default on loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([server or x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        certificate = self._signed(subject, key.public_key(), address)
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return files

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self.key, hashes.SHA256())
        )


@dataclass
class TlsControlPlane:
    """A control plane with TLS on both ports."""

    announced: dict[str, Any]
    authority: Authority
    certificate: Path
    key: Path

    @property
    def url(self) -> str:
        return str(self.announced["url"])

    def client(self) -> Client:
        return Client(self.url, Path(self.announced["token_file"]).read_text().strip())

    def serial_number(self, url: str) -> int:
        """The serial number of the currently served certificate."""
        parts = urlsplit(url)
        trust = ssl.create_default_context(cafile=str(self.authority.file))
        with (
            socket.create_connection((parts.hostname, parts.port), 10) as plain,
            trust.wrap_socket(plain, server_hostname=parts.hostname) as encrypted,
        ):
            shown = encrypted.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


@pytest.fixture
def encrypted(alone: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsControlPlane]:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server")
    monkeypatch.setenv(CA_VARIABLE, str(authority.file))
    options = [
        f"--{which}tls-{what}={file}"
        for which in ("", "internal-")
        for what, file in (("certificate", certificate), ("key", key))
    ]
    process = subprocess.Popen(
        [COMMAND, "up", "--port", "0", "--internal-port", "0", "--json", *options],
        env={**alone.environment, CA_VARIABLE: str(authority.file), "EPOCHAL_WARM_DRIVERS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "the control plane has ended"
        yield TlsControlPlane(json.loads("".join(lines)), authority, certificate, key)
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.alternating(2)
def test_both_ports_use_tls_and_serve_replaced_certificates(
    encrypted: TlsControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    internal = str(encrypted.announced["internal_url"])
    assert encrypted.url.startswith("https://") and internal.startswith("https://")
    with encrypted.client() as client:
        assert client.applications.list() == []
    for url in (encrypted.url, internal):
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https://", "http://") + "/healthz", trust_env=False)

    # Clients without TLS or without trust in the authority report this in one sentence.
    plain = encrypted.url.replace("https://", "http://")
    with pytest.raises(CatalogUnavailable, match="begins with https"), Client(plain, "token") as client:
        client.applications.list()
    monkeypatch.setenv(CA_VARIABLE, str(Authority(tmp_path / "another").file))
    with pytest.raises(CatalogUnavailable, match=r"is not trusted .* EPOCHAL_CA_FILE"), encrypted.client() as client:
        client.applications.list()
    monkeypatch.setenv(CA_VARIABLE, str(encrypted.key))
    with pytest.raises(OptionError, match=CA_VARIABLE):
        encrypted.client()
    monkeypatch.setenv(CA_VARIABLE, str(encrypted.authority.file))

    before = encrypted.serial_number(encrypted.url)
    assert encrypted.serial_number(internal) == before
    certificate, key = encrypted.authority.issue("next")
    os.replace(certificate, encrypted.certificate)  # not loaded before its key is replaced
    assert encrypted.serial_number(encrypted.url) == before
    os.replace(key, encrypted.key)
    new = x509.load_pem_x509_certificate(encrypted.certificate.read_bytes()).serial_number
    for url in (encrypted.url, internal):
        eventually(lambda url=url: encrypted.serial_number(url) == new)
    with encrypted.client() as client:
        assert client.applications.list() == []


@pytest.mark.long
def test_a_driver_commits_epochs_over_tls(encrypted: TlsControlPlane, sensors: Path, tmp_path: Path) -> None:
    with encrypted.client() as client:
        artifact = client.artifacts.upload(sensors)
        client.applications.create("sensors", artifact.sha256, parameters={"output": str(tmp_path / "out")})
        try:
            eventually(lambda: (head := client.applications.get("sensors").head) is not None and head.epoch >= 2)
        finally:
            client.operations.wait(client.applications.stop("sensors"))


def test_incomplete_or_invalid_tls_files_are_refused(alone: CommandLine, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "authority").issue("server")
    half = alone("up", "--tls-certificate", certificate)
    assert half.code == 1
    assert "belong together" in half.stderr
    neither = alone("up", "--internal-tls-certificate", key, "--internal-tls-key", certificate)
    assert neither.code == 1
    assert "not a certificate and its key" in neither.stderr
