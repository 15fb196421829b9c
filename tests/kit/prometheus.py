"""A private Prometheus from Debian's package, with ``promtool``, which checks and tests rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from epochal.testing.servers.maven import cache
from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, free_port

PACKAGE = "prometheus"
TIMEOUT_SECONDS = 300


class PrometheusServer:
    """A running server. ``url`` is its own address. Rules and targets are fixed at its start."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process = process
        self.url = f"http://{LOOPBACK}:{port}"

    def query(self, expression: str) -> list[Any]:
        """Return the result of an instant query: objects with ``metric`` and ``value``."""
        return list(self._get("/api/v1/query", query=expression)["result"])

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of the firing alerts, by name."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
            return True
        return False


@contextmanager
def prometheus(
    targets: Mapping[str, Path | None], rules: str = "groups: []\n", interval_seconds: int = 1
) -> Iterator[PrometheusServer]:
    """Start a server that scrapes the targets (``host:port``, with the file of the token to send) and evaluates the
    rules.

    Stops it and removes its data at the end. Raises ``ServerUnavailable`` if the package is unavailable.
    """
    program = packages(PACKAGE, [PACKAGE]) / "usr" / "bin" / "prometheus"
    folder = Path(tempfile.mkdtemp(prefix="epochal-prometheus-"))
    try:
        (folder / "rules.yaml").write_text(rules)
        # JSON is YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(_settings(folder, targets, interval_seconds)))
        port = free_port()
        arguments = ["--web.listen-address", f"{LOOPBACK}:{port}", "--storage.tsdb.path", str(folder / "data")]
        command: list[str | Path] = [program, "--config.file", folder / "prometheus.yaml", *arguments]
        server = PrometheusServer(ServerProcess("Prometheus", command, folder / "log", directory=folder), port)
        try:
            server.process.wait_until(server.is_ready, seconds=60)
            yield server
        finally:
            server.process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def promtool(*arguments: str | Path, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``promtool``. Standard output and standard error are combined. Raises ``ServerUnavailable``."""
    program = packages(PACKAGE, [PACKAGE]) / "usr" / "bin" / "promtool"
    return subprocess.run(
        [program, *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def _settings(folder: Path, targets: Mapping[str, Path | None], interval_seconds: int) -> dict[str, Any]:
    interval = f"{interval_seconds}s"
    jobs = []
    for number, (target, token) in enumerate(targets.items()):
        job: dict[str, Any] = {"job_name": f"epochal-{number}", "static_configs": [{"targets": [target]}]}
        if token is not None:
            job["authorization"] = {"credentials_file": str(token)}
        jobs.append(job)
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": jobs,
    }


def packages(name: str, names: Sequence[str]) -> Path:
    """Return the folder with the contents of these packages (``usr/bin/..``), named as ``name`` or ``name=version``.

    The first call on a machine fetches them, completely or not at all. Raises ``ServerUnavailable`` with the reason if
    apt, the package list or the network is missing.
    """
    place = cache() / f"{name}-debian"
    if place.is_dir():
        return place
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServerUnavailable(f"{name} is fetched as a Debian package, and apt-get is not installed.")
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        draft.chmod(0o755)  # apt can download as another user
        if _run(["apt-get", "download", *names], draft) is not None and os.geteuid() == 0:
            _run(["apt-get", "update"], draft)  # the package list may be missing
        if not any(draft.glob("*.deb")) and (reason := _run(["apt-get", "download", *names], draft)) is not None:
            raise ServerUnavailable(f"apt-get could not download {' '.join(names)}: {reason}")
        (draft / "unpacked").mkdir()
        for package in draft.glob("*.deb"):
            if (reason := _run(["dpkg", "-x", str(package), "unpacked"], draft)) is not None:
                raise ServerUnavailable(f"{package.name} could not be unpacked: {reason}")
        _publish(draft / "unpacked", place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _run(command: Sequence[str], folder: Path) -> str | None:
    """Run a command. Returns ``None`` after success, otherwise the reason of the failure."""
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if ran.returncode == 0 else (ran.stderr or ran.stdout).strip()[:500] or f"exit code {ran.returncode}"


def _publish(unpacked: Path, place: Path) -> None:
    """Publish the folder with one rename. A concurrent process that comes second finds the same files."""
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():
            raise
