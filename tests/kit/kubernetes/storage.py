"""Storage claims bound to folders of this machine: the class ``folders``, which is the cluster's default."""

from __future__ import annotations

import shutil
import urllib.error
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kit.kubernetes.cluster import KubernetesCluster

CLASS = "folders"
_PROVISIONER = "epochal.testing/folders"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"


class ClaimedFolders:
    """``folder``: contains a folder for each claim until the claim is deleted."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._has_class = False

    def bind(self) -> None:
        """Bind each pending claim to a volume, and remove the volumes of deleted claims. Raises ``OSError``."""
        self._ensure_class()
        for claim in self._cluster.get("/api/v1/persistentvolumeclaims")["items"]:
            if claim["status"].get("phase") == "Pending" and claim["spec"].get("storageClassName") == CLASS:
                self._create_volume(claim)
        for volume in self._cluster.get(_VOLUMES)["items"]:
            if volume["spec"].get("storageClassName") == CLASS and volume["status"].get("phase") == "Released":
                shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)
                self._cluster.delete(f"{_VOLUMES}/{volume['metadata']['name']}")

    def _ensure_class(self) -> None:
        if self._has_class:
            return
        is_default = {"storageclass.kubernetes.io/is-default-class": "true"}
        body = {"metadata": {"name": CLASS, "annotations": is_default}, "provisioner": _PROVISIONER}
        self._create(_CLASSES, body)
        self._has_class = True

    def _create_volume(self, claim: dict[str, Any]) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        name = f"claim-{metadata['uid']}"
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        owner = {key: metadata[key] for key in ("namespace", "name", "uid")}
        self._create(
            _VOLUMES,
            {
                "metadata": {"name": name},
                "spec": {
                    "capacity": spec["resources"]["requests"],
                    "accessModes": spec["accessModes"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": CLASS,
                    "hostPath": {"path": str(folder)},
                    "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **owner},
                },
            },
        )

    def _create(self, path: str, body: dict[str, Any]) -> None:
        with suppress(urllib.error.HTTPError):  # another node has just created it
            self._cluster.create(path, body)
