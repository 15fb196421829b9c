"""The control plane of Kubernetes on loopback: etcd, API server, controllers and scheduler, as in clusters.

RBAC, Pod Security and quotas are enforced. Service accounts have tokens that can be verified with the issuer's keys.
The cluster has no node until a :class:`~tests.kit.kubernetes.kubelet.Kubelet` registers one.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, accepts, free_port
from tests.kit.kubernetes.programs import programs

ISSUER = "https://kubernetes.default.svc.cluster.local"
SERVICES = "10.96.0.0/16"
_START_SECONDS = 120
_CALL_SECONDS = 30


@dataclass
class KubernetesCluster:
    """A running cluster. ``url``: address of the API server. ``authority``: the certificate to trust (PEM).

    ``token``: the token of an administrator with all rights.
    """

    url: str
    authority: Path
    token: str = field(repr=False)
    folder: Path
    processes: Mapping[str, ServerProcess]

    @property
    def api_server(self) -> ServerProcess:
        return self.processes["kube-apiserver"]

    def kubeconfig(self, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig for the bearer of ``token``, by default an administrator."""
        path = self.folder / f"kubeconfig-{secrets.token_hex(4)}"
        # JSON is YAML.
        path.write_text(json.dumps(_kubeconfig(self.url, self.authority, token or self.token, namespace)))
        path.chmod(0o600)
        return path

    def get(self, path: str, token: str | None = None) -> Any:
        """Return a resource as JSON. Raises ``urllib.error.HTTPError``."""
        return self._call("GET", path, None, token)

    def text(self, path: str) -> str:
        """Return a text resource, such as a log. Raises ``urllib.error.HTTPError``."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=self._trust) as answer:
            return str(answer.read().decode(errors="replace"))

    def create(self, path: str, body: Mapping[str, Any], token: str | None = None) -> Any:
        """Create a resource (POST) and return it. Raises ``urllib.error.HTTPError``."""
        return self._call("POST", path, body, token)

    def delete(self, path: str, options: Mapping[str, Any] | None = None, token: str | None = None) -> None:
        """Delete a resource. ``options``: fields of ``DeleteOptions``. Raises ``urllib.error.HTTPError``."""
        self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **(options or {})}, token)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Apply the strategic merge patch that each kind of resource declares. Raises ``urllib.error.HTTPError``."""
        return self._call("PATCH", path, body, None, "application/strategic-merge-patch+json")

    def watch(self, path: str, query: Mapping[str, str], seconds: int) -> Iterator[tuple[str, Any]]:
        """Yield all existing objects as ``ADDED``, then changes, for ``seconds`` seconds: event type and object.

        Raises ``urllib.error.URLError`` and ``OSError`` if the API server ends the watch.
        """
        parameters = urllib.parse.urlencode({**query, "watch": "true", "timeoutSeconds": str(seconds)})
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}?{parameters}", headers=headers)
        with urllib.request.urlopen(request, timeout=seconds + _CALL_SECONDS, context=self._trust) as lines:
            for line in lines:
                event = json.loads(line)
                yield str(event["type"]), event["object"]

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, and wait for its default service account, without which it admits no pod."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.api_server.wait_until(lambda: self._exists(account), _START_SECONDS)

    def account_token(self, namespace: str, account: str, audiences: Sequence[str] = (), seconds: int = 3600) -> str:
        """Return a token of a service account, like that of a pod but not bound to a pod."""
        spec = {"audiences": list(audiences), "expirationSeconds": seconds}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.create(path, {"spec": spec})["status"]["token"])

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def _exists(self, path: str) -> bool:
        try:
            self.get(path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        token: str | None,
        content_type: str = "application/json",
    ) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token or self.token}", "Content-Type": content_type},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=self._trust) as answer:
            return json.load(answer)


@contextmanager
def kubernetes(node_gone_seconds: int = 40) -> Iterator[KubernetesCluster]:
    """Start a cluster; stop it and remove its data at the end of the block.

    ``node_gone_seconds``: the time without a heartbeat after which a node counts as lost. Raises
    ``ServerUnavailable``.
    """
    program = programs()
    folder = Path(tempfile.mkdtemp(prefix="epochal-kubernetes-"))
    processes: dict[str, ServerProcess] = {}
    try:
        yield _start(program, folder, processes, node_gone_seconds)
    finally:
        for process in reversed(processes.values()):
            process.stop(signal.SIGKILL)  # an orderly stop takes 17 s, and no data is kept
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    program: Path, folder: Path, processes: dict[str, ServerProcess], node_gone_seconds: int
) -> KubernetesCluster:
    def start(name: str, *options: str) -> ServerProcess:
        processes[name] = ServerProcess(f"Kubernetes' {name}", [program, name, *options], folder / f"{name}.log")
        return processes[name]

    store, peers, port = free_port(), free_port(), free_port()
    token = secrets.token_hex(16)
    key = make_key(folder / "accounts.key")
    tokens = folder / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text(f'{token},administrator,administrator,"system:masters"\n')
    database = start("etcd", *_etcd_options(folder, store, peers))
    database.wait_until(lambda: accepts(store), _START_SECONDS)
    server = start("kube-apiserver", *_api_server_options(folder, store, port, key, tokens))
    url, authority = f"https://{LOOPBACK}:{port}", folder / "certificates" / "apiserver.crt"
    server.wait_until(lambda: _is_ready(url, authority), _START_SECONDS)
    cluster = KubernetesCluster(url, authority, token, folder, processes)
    client_options = ["--kubeconfig", str(cluster.kubeconfig()), "--leader-elect=false", "--secure-port=0"]
    start(
        "kube-controller-manager",
        *client_options,
        f"--service-account-private-key-file={key}",
        f"--root-ca-file={authority}",
        "--use-service-account-credentials=false",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={node_gone_seconds}s",
    )
    start("kube-scheduler", *client_options)
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    processes["kube-controller-manager"].wait_until(lambda: cluster._exists(account), _START_SECONDS)
    return cluster


def _etcd_options(folder: Path, port: int, peers: int) -> list[str]:
    url, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peers}"
    return [
        *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level=error"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
    ]


def _api_server_options(folder: Path, store: int, port: int, key: Path, tokens: Path) -> list[str]:
    return [
        f"--etcd-servers=http://{LOOPBACK}:{store}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--service-cluster-ip-range={SERVICES}",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--enable-admission-plugins=PodSecurity,ResourceQuota,LimitRanger,ServiceAccount",
        f"--token-auth-file={tokens}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--api-audiences={ISSUER}",
        "--allow-privileged=false",
        "--kubelet-preferred-address-types=InternalIP",
        "--v=0",
    ]


def _is_ready(url: str, authority: Path) -> bool:
    with suppress(urllib.error.URLError, OSError):
        trust = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=trust):
            return True
    return False


def _kubeconfig(url: str, authority: Path, token: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        "current-context": "test",
    }


def make_key(path: Path) -> Path:
    """Create a private RSA key (PEM), which signs service accounts' tokens. Raises ``ServerUnavailable``."""
    _openssl("genrsa", "-out", str(path), "2048")
    return path


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a key and a self-signed certificate for a server on loopback. Raises ``ServerUnavailable``."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:localhost"]
    _openssl("req", "-x509", "-days", "30", *curve, "-out", str(certificate), *subject)
    return key, certificate


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"openssl could not create a key: {error}.") from error
    if done.returncode != 0:
        raise ServerUnavailable(f"openssl could not create a key: {done.stderr.strip()[-300:]}")
