"""A control plane with warm pods, and an identity provider in place of a cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from epochal.driver.pool_client import PodClient
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.settings import Settings
from epochal.service.runtime.kept_pods import PodDesk
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.service.conftest import Plane, StandInSupervisor, http_client, serving

NAMESPACE, ACCOUNT = "team-a", "epochal-builder"
CODE = b"from epochal import Pipeline\n"


@dataclass
class PodCluster:
    """A control plane, and an identity provider that signs tokens of pods in place of a cluster."""

    provider: IdentityProvider
    settings: Settings
    kept: PodDesk
    folder: Path
    plane: Plane
    made: int = 0

    def token(self, name: str, uid: str, account: str = ACCOUNT) -> str:
        own = {"namespace": NAMESPACE, "pod": {"name": name, "uid": uid}, "serviceaccount": {"name": account}}
        return self.provider.token(sub=f"system:serviceaccount:{NAMESPACE}:{account}", **{"kubernetes.io": own})

    def token_file(self, name: str, uid: str) -> Path:
        self.made += 1
        file = self.folder / f"token-{self.made}"
        file.write_text(self.token(name, uid))
        return file

    def keeper(self, name: str, as_pod: str = "", patience_seconds: float = 30.0) -> PodClient:
        """A client of the pod ``name`` with the token of ``as_pod``, which may be another pod. The uid is the pod's
        name."""
        own = as_pod or name
        file = self.token_file(own, f"uid-{own}")
        return PodClient(self.settings.internal_url, name, file, patience_seconds, others_seconds=0.3)

    def pod(self, name: str) -> PodClient:
        self.kept.expect(name)
        self.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return self.keeper(name)


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[PodCluster]:
    with identity_provider() as provider:
        issuer = {"issuer": provider.url, "keys": f"{provider.url}/keys", "authority": None, "token": None}
        configuration = {
            "issuer": issuer,
            "namespaces": {"default": NAMESPACE},
            "image": "epochal:1",
            "start_seconds": 60,
        }
        kubernetes = KubernetesSettings.model_validate(configuration)
        settings = settings.model_copy(update={"kubernetes": kubernetes})
        supervisor = StandInSupervisor()
        with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
            plane = Plane(control, client, settings, supervisor, [])
            desk = PodDesk.of(settings.pods_directory)
            desk.open()
            yield PodCluster(provider, settings, desk, tmp_path, plane)
            desk.close()


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def give_work(cluster: PodCluster, name: str, work: bytes = b"{}") -> None:
    code = cluster.folder / "flights.py"
    code.write_bytes(CODE)
    cluster.kept.give(name, work, {sha256_of(CODE): code})
