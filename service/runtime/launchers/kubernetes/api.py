"""Calls of the cluster's API for the launcher, based on the official client. Pods are represented as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from epochal.errors import EnvironmentProblem, LauncherUnavailable
from epochal.service.domain.kubernetes.conditions import Json
from epochal.service.domain.kubernetes.pod_settings import MOUNTED, KubernetesSettings

_SECONDS = (5.0, 20.0)
"""Timeouts for the connection and between two parts of an answer."""
_QUIET_SECONDS = 300.0
"""Maximum silence of a log before it is requested again."""
_CONNECTIONS = 64
_AWAY = frozenset({429, 500, 502, 503, 504})


class Refused(Exception):
    """The API server refused the call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ClusterApi:
    """Client of the cluster's API.

    Every method raises ``LauncherUnavailable`` if the cluster cannot be reached, and :class:`Refused`.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        """Raises ``EnvironmentProblem`` if no cluster is configured."""
        # The types of the client cover only answers that it decodes itself.
        self._api: Any = client.CoreV1Api(client.ApiClient(_configuration(settings)))

    def create_pod(self, namespace: str, manifest: Json) -> Json:
        with _answering():
            return _read(self._api.create_namespaced_pod(namespace, dict(manifest), **_RAW))

    def label_pod(
        self, namespace: str, name: str, uid: str, before: tuple[str, str], labels: Mapping[str, str]
    ) -> Json:
        """Put labels on the pod with this uid, if it has the label ``before``; :class:`Refused` otherwise."""
        steps: list[dict[str, str]] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": _label(before[0]), "value": before[1]},
            *({"op": "add", "path": _label(label), "value": value} for label, value in labels.items()),
        ]
        with _answering():
            return _read(self._api.patch_namespaced_pod(name, namespace, steps, **_RAW))

    def pod(self, namespace: str, name: str) -> Json | None:
        """Read the current state of a pod, never an outdated one."""
        try:
            with _answering():
                return _read(self._api.read_namespaced_pod(name, namespace, **_RAW))
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def pods(self, namespace: str, selector: str) -> tuple[Sequence[Json], str]:
        """List the existing pods, and return them with the version from which to watch."""
        with _answering():
            listed = _read(self._api.list_namespaced_pod(namespace, label_selector=selector, **_RAW))
        return listed.get("items") or (), str(listed["metadata"]["resourceVersion"])

    def watch(self, namespace: str, selector: str, version: str, seconds: int) -> Iterator[tuple[str, Json]]:
        """Yield the changes after ``version`` for ``seconds``, as event types and pods."""
        with _answering():
            answer = self._api.list_namespaced_pod(
                namespace,
                label_selector=selector,
                resource_version=version,
                allow_watch_bookmarks=True,
                watch=True,
                timeout_seconds=seconds,
                _preload_content=False,
                _request_timeout=(_SECONDS[0], seconds + _SECONDS[1]),
            )
            try:
                for line in _lines(answer):
                    event = json.loads(line)
                    yield str(event["type"]), event["object"]
            finally:
                answer.close()

    def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None) -> None:
        """Delete the pod with this uid, if it exists. ``grace_seconds=None``: the pod's own grace period."""
        body: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            with _answering():
                _read(self._api.delete_namespaced_pod(name, namespace, body=body, **_RAW))
        except Refused as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def log(self, namespace: str, name: str, container: str, follow: bool) -> Iterator[bytes]:
        """Yield a log in parts, as they arrive. ``follow``: until the container has ended."""
        with _answering():
            answer = self._api.read_namespaced_pod_log(
                name,
                namespace,
                container=container,
                follow=follow,
                _preload_content=False,
                _request_timeout=(_SECONDS[0], _QUIET_SECONDS if follow else _SECONDS[1]),
            )
            try:
                while part := answer.read1(1 << 16):
                    yield part
            finally:
                answer.close()

    def events(self, namespace: str, uid: str) -> Sequence[Json]:
        """Return the events of a pod, oldest first."""
        with _answering():
            selected = f"involvedObject.uid={uid}"
            listed = _read(self._api.list_namespaced_event(namespace, field_selector=selected, **_RAW))
        events: list[Json] = list(listed.get("items") or ())
        return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))

    def close(self) -> None:
        self._api.api_client.close()


_RAW: Mapping[str, Any] = {"_preload_content": False, "_request_timeout": _SECONDS}


def _label(name: str) -> str:
    """Return the JSON pointer to a label."""
    return f"/metadata/labels/{name.replace('~', '~0').replace('/', '~1')}"


def _read(answer: Any) -> Json:
    try:
        document: Json = json.loads(answer.data)
    finally:
        answer.release_conn()
    return document


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    while part := answer.read1(1 << 16):
        *lines, rest = (rest + part).split(b"\n")
        yield from filter(None, lines)
    if rest:
        yield rest


@contextmanager
def _answering() -> Iterator[None]:
    """Convert errors of the client to ``Refused`` and ``LauncherUnavailable``."""
    try:
        yield
    except ApiException as error:
        message = _message(error)
        if error.status in _AWAY or not error.status:
            raise LauncherUnavailable(f"The cluster is currently unavailable ({error.status}): {message}.") from error
        raise Refused(error.status, message) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise LauncherUnavailable(f"The cluster cannot be reached: {error}.") from error


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return str(error.body or error.reason)


def _configuration(settings: KubernetesSettings) -> Any:
    found: Any = client.Configuration()
    reading: Any = config
    try:
        if settings.kubeconfig is None and (MOUNTED / "token").exists():
            reading.load_incluster_config(client_configuration=found)
        else:
            path = None if settings.kubeconfig is None else str(settings.kubeconfig)
            reading.load_kube_config(path, settings.context, client_configuration=found)
    except (ConfigException, OSError) as error:
        raise EnvironmentProblem(
            f"Which cluster drivers run on is not known: {error}. A control plane in a pod needs a service account; "
            "elsewhere `kubeconfig` in the file of `--kubernetes` names the file that kubectl uses."
        ) from error
    found.connection_pool_maxsize = _CONNECTIONS
    return found


def own_namespace(settings: KubernetesSettings, mounted: Path = MOUNTED) -> str | None:
    """Return the control plane's namespace; ``None`` if it does not run in a pod, or the namespace is unknown."""
    if settings.own_namespace is not None:
        return settings.own_namespace
    try:
        return (mounted / "namespace").read_text().strip() or None
    except OSError:
        return None
