"""Keys and certificates of a cluster for tests, by the ``openssl`` command."""

from __future__ import annotations

import subprocess
from pathlib import Path

from epochal.testing.servers.process import LOOPBACK, ServerUnavailable


def make_key(path: Path) -> Path:
    """A private RSA key (PEM), which signs service accounts' tokens. Raises ``ServerUnavailable``."""
    _openssl("genrsa", "-out", str(path), "2048")
    return path


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A key and a certificate that it has signed itself, for a server on loopback. Raises ``ServerUnavailable``."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:localhost"]
    _openssl("req", "-x509", "-days", "30", *curve, "-out", str(certificate), *subject)
    return key, certificate


def _openssl(*arguments: str) -> None:
    try:
        ran = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"A key could not be made with openssl: {error}.") from error
    if ran.returncode != 0:
        raise ServerUnavailable(f"A key could not be made with openssl: {ran.stderr.strip()[-300:]}")
