"""The volumes of a pod as folders of this machine, filled from the API; tokens are renewed."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.kubernetes import environment
from tests.kit.kubernetes.cluster import KubernetesCluster
from tests.kit.kubernetes.environment import Manifest, MissingObject, Place

_TOKEN_SECONDS = 3600
_RENEWED_AFTER = 0.8
"""Fraction of a token's lifetime after which it is renewed, as in the kubelet."""


@dataclass
class Volumes:
    """``folder``: contains a folder per volume, by name. ``claims``: contains the folders of claims, which outlive
    pods."""

    cluster: KubernetesCluster
    pod: Manifest
    place: Place
    folder: Path
    claims: Path
    _renewals: dict[Path, tuple[float, Manifest]] = field(default_factory=dict)
    """Token files: the time of the next renewal, and the token's source."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self) -> dict[str, Path]:
        """Create the folder of each volume, by name. Can be called repeatedly. Raises :class:`MissingObject`."""
        return {volume["name"]: self._volume(volume) for volume in self.pod["spec"].get("volumes") or ()}

    def renew(self) -> None:
        """Renew the tokens that are due. Raises ``OSError`` if the API is unreachable."""
        with self._lock:
            due = [(path, source) for path, (at, source) in self._renewals.items() if time.monotonic() >= at]
        for path, source in due:
            self._write_token(path, source)

    def data(self, kind: str, name: str, optional: bool) -> Mapping[str, str] | None:
        """Implements :data:`~tests.kit.kubernetes.environment.Data`."""
        content = self._content(kind, name, optional)
        return None if content is None else {key: value.decode() for key, value in content.items()}

    @property
    def _namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    def _volume(self, volume: Manifest) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            return self._claim(volume["persistentVolumeClaim"]["claimName"])
        folder = self.folder / str(volume["name"])
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777 if "emptyDir" in volume else 0o755)
        if "emptyDir" in volume:
            return folder
        sources = (volume["projected"].get("sources") or ()) if "projected" in volume else [volume]
        for source in sources:
            self._fill(folder, source)
        return folder

    def _fill(self, folder: Path, source: Manifest) -> None:
        if "serviceAccountToken" in source:
            self._write_token(folder / source["serviceAccountToken"]["path"], source["serviceAccountToken"])
        elif "downwardAPI" in source:
            for item in source["downwardAPI"].get("items") or ():
                _write(folder / item["path"], self._downward(item).encode())
        elif "configMap" in source:
            self._fill_with("configmaps", source["configMap"]["name"], source["configMap"], folder)
        elif "secret" in source:
            name = source["secret"].get("secretName") or source["secret"]["name"]
            self._fill_with("secrets", name, source["secret"], folder)
        else:
            raise MissingObject(f"this kubelet does not support volumes of {', '.join(source)}")

    def _downward(self, item: Manifest) -> str:
        if "fieldRef" in item:
            return environment.field(self.pod, self.place, item["fieldRef"]["fieldPath"])
        reference = item["resourceFieldRef"]
        containers = {container["name"]: container for container in self.pod["spec"]["containers"]}
        return environment.resource(containers[reference["containerName"]], reference)

    def _fill_with(self, kind: str, name: str, source: Manifest, folder: Path) -> None:
        content = self._content(kind, name, bool(source.get("optional")))
        if content is None:
            return
        items: Sequence[Manifest] = source.get("items") or [{"key": key, "path": key} for key in content]
        for item in items:
            if item["key"] not in content:
                raise MissingObject(f"references non-existent {kind} key: {item['key']}")
            path = folder / item["path"]
            _write(path, content[item["key"]])
            path.chmod(item.get("mode") or source.get("defaultMode") or 0o644)

    def _content(self, kind: str, name: str, optional: bool) -> Mapping[str, bytes] | None:
        try:
            found = self.cluster.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404 and optional:
                return None
            if error.code == 404:
                raise MissingObject(f'{kind.removesuffix("s")} "{name}" not found') from None
            raise
        plain = {key: text.encode() for key, text in (found.get("data") or {}).items()}
        if kind == "secrets":
            return {key: b64decode(text) for key, text in plain.items()}
        return plain | {key: b64decode(text) for key, text in (found.get("binaryData") or {}).items()}

    def _claim(self, name: str) -> Path:
        try:
            claim = self.cluster.get(f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            raise MissingObject(f'persistentvolumeclaim "{name}" not found') from None
        volume = claim["spec"].get("volumeName")
        if claim["status"].get("phase") != "Bound" or volume is None:
            raise MissingObject(f'persistentvolumeclaim "{name}" is not bound')
        found: dict[str, Any] = self.cluster.get(f"/api/v1/persistentvolumes/{volume}")
        return Path(found["spec"]["hostPath"]["path"])

    def _write_token(self, path: Path, source: Manifest) -> None:
        """Write a token that is bound to this pod; it becomes invalid when the pod is deleted."""
        metadata = self.pod["metadata"]
        seconds = int(source.get("expirationSeconds") or _TOKEN_SECONDS)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        audiences = [source["audience"]] if source.get("audience") else []
        spec = {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound}
        account = self.pod["spec"].get("serviceAccountName", "default")
        answer = self.cluster.create(
            f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token", {"spec": spec}
        )
        _write(path, answer["status"]["token"].encode())
        with self._lock:
            self._renewals[path] = (time.monotonic() + _RENEWED_AFTER * seconds, source)


def _write(path: Path, content: bytes) -> None:
    """Write the file atomically: a reader sees the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{threading.get_ident()}")
    draft.write_bytes(content)
    os.replace(draft, path)
