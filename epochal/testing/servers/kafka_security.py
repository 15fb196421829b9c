"""What a Kafka broker needs for a listener with TLS, passwords and rights: a certificate, one user, an authorizer."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.servers.maven import java
from epochal.testing.servers.process import LOOPBACK, ServerUnavailable, free_port

LISTENER = "SECURED"
USER = "epochal"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class SecuredListener:
    """A listener for :data:`USER`, by SASL's PLAIN and SCRAM-SHA-512 over TLS; the user has no rights at first.

    Clients of the broker's other listeners are anonymous, and may do everything.
    """

    port: int
    password: str
    authority: Path
    """The certificate that clients are to trust (PEM)."""
    _store: Path
    _store_password: str

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def settings(self) -> dict[str, str]:
        """Of the broker, beside the listener's address."""
        prefix = f"listener.name.{LISTENER.lower()}"
        return {
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="'
            f'{self.password}";',
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{prefix}.ssl.keystore.type": "PKCS12",
            f"{prefix}.ssl.keystore.location": str(self._store),
            f"{prefix}.ssl.keystore.password": self._store_password,
            f"{prefix}.ssl.key.password": self._store_password,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        }

    def format_arguments(self) -> list[str]:
        """For Kafka's storage tool: SCRAM's passwords are part of the cluster's metadata."""
        return ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={self.password}]"]


def secured_listener(folder: Path) -> SecuredListener:
    """Make the certificate, with the JDK's own tool, below ``folder``. Raises ``ServerUnavailable``."""
    store, authority, password = folder / "broker.p12", folder / "broker.pem", secrets.token_hex(12)
    access = ["-alias", "broker", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    certificate = ["-keyalg", "EC", "-dname", "CN=localhost", "-ext", f"SAN=IP:{LOOPBACK},DNS:localhost"]
    _keytool("-genkeypair", *access, "-keypass", password, *certificate, "-validity", "30")
    _keytool("-exportcert", "-rfc", *access, "-file", str(authority))
    return SecuredListener(free_port(), secrets.token_hex(12), authority, store, password)


def _keytool(*arguments: str) -> None:
    tool = Path(java()).with_name("keytool")
    try:
        ran = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"A certificate could not be made: {error}.") from error
    if ran.returncode != 0:
        raise ServerUnavailable(f"A certificate could not be made: {(ran.stdout + ran.stderr).strip()[:300]}")
