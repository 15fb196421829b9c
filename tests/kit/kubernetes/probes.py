"""Probes of containers: startup, liveness and readiness."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Literal

from tests.kit.kubernetes.containers import Container
from tests.kit.kubernetes.environment import Manifest

Kind = Literal["startupProbe", "livenessProbe", "readinessProbe"]
KINDS: tuple[Kind, ...] = ("startupProbe", "livenessProbe", "readinessProbe")


class Probe:
    """One probe of one container. ``holds``: its result so far. A missing probe holds immediately."""

    def __init__(
        self, kind: Kind, manifest: Manifest, address: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe: Manifest = manifest.get(kind) or {}
        self._ports = {port.get("name"): port["containerPort"] for port in manifest.get("ports") or ()}
        self._address = address
        self._clock = clock
        self._next = clock() + float(self._probe.get("initialDelaySeconds") or 0)
        self._failures = self._successes = 0
        self.holds = not self._probe or kind == "livenessProbe"
        self.has_failed = False
        """True after enough consecutive failures."""

    def run_if_due(self, container: Container) -> None:
        """Run the probe if it is due."""
        if not self._probe or self._clock() < self._next:
            return
        self._next = self._clock() + float(self._probe.get("periodSeconds") or 10)
        if self._succeeds(container, float(self._probe.get("timeoutSeconds") or 1)):
            self._failures, self._successes = 0, self._successes + 1
            self.has_failed = False
            self.holds = self.holds or self._successes >= int(self._probe.get("successThreshold") or 1)
        else:
            self._failures, self._successes = self._failures + 1, 0
            if self._failures >= int(self._probe.get("failureThreshold") or 3):
                self.holds, self.has_failed = False, True

    def _succeeds(self, container: Container, seconds: float) -> bool:
        if "exec" in self._probe:
            return container.run(self._probe["exec"]["command"], seconds) == 0
        if "httpGet" in self._probe:
            return self._answers(self._probe["httpGet"], seconds)
        if "tcpSocket" in self._probe:
            where = self._probe["tcpSocket"]
            return _accepts(where.get("host") or self._address, self._port(where["port"]), seconds)
        raise NotImplementedError(f"this kubelet does not support probes by {', '.join(self._probe)}")

    def _answers(self, get: Manifest, seconds: float) -> bool:
        scheme = str(get.get("scheme") or "HTTP").lower()
        url = f"{scheme}://{get.get('host') or self._address}:{self._port(get['port'])}{get.get('path') or '/'}"
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or ()}
        request = urllib.request.Request(url, headers={"User-Agent": "kube-probe/test", **headers})
        try:
            # The kubelet does not verify certificates either.
            with urllib.request.urlopen(request, timeout=seconds, context=ssl._create_unverified_context()) as answer:
                return bool(200 <= answer.status < 400)
        except (urllib.error.URLError, OSError):
            return False

    def _port(self, port: int | str) -> int:
        return int(port if isinstance(port, int) or port.isdecimal() else self._ports[port])


def _accepts(host: str, port: int, seconds: float) -> bool:
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False
