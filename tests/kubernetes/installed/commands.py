"""Runs the commands of the page "In production" with its files, on a real Kubernetes API.

``helm`` is Helm's own library, ``epochal`` the installed command. Commands of ``kubectl`` are replaced by API calls.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from epochal.errors import NotFound, NotYetCommitted
from tests.kubernetes.installed.installation import (
    CHART,
    NAMESPACE,
    RELEASE,
    STORE_KEYS,
    STORE_SECRET,
    Installation,
    merged,
)
from tests.service.end_to_end.blocks import ROOT, Block, blocks_of

PAGE, PIPELINE = "docs/start/in-production.md", "README.md"
_FIRST_COMMENT = re.compile(r"# (\S+\.(?:py|yaml))\n")
_EXPORT = re.compile(r"export (\w+)=\$\((.*)\)")


def write_files(folder: Path) -> None:
    """Save the files of the page under the names in their first lines."""
    for block in [*blocks_of(PIPELINE, "python"), *blocks_of(PAGE, "yaml")]:
        if found := _FIRST_COMMENT.match(block.text):
            (folder / found[1]).write_text(block.text)


def commands_of(block: Block) -> list[str]:
    return [line.partition(" # ")[0].strip() for line in block.text.splitlines() if line.strip()]


class Reader:
    """Runs the page's commands in ``folder``, with the page's chart values and those of this installation.

    ``output``: the output of each command of ``epochal`` and of each ``helm test``.
    """

    def __init__(self, installed: Installation, folder: Path) -> None:
        self.output: dict[str, str] = {}
        self._installed = installed
        self._folder = folder
        write_files(folder)

    def follow(self, block: Block) -> None:
        for command in commands_of(block):
            self._run(command)

    def values(self, file: str) -> dict[str, Any]:
        return merged(yaml.safe_load((self._folder / file).read_text()), self._installed.local_values())

    def _run(self, command: str) -> None:
        installed, cluster = self._installed, self._installed.cluster
        if found := _EXPORT.fullmatch(command):
            assert found[1] == "EPOCHAL_TOKEN" and _secret_value(found[2], installed) == installed.token, command
            return
        match shlex.split(command):
            case ["kubectl", "create", "namespace", name]:
                cluster.make_namespace(name)
            case ["kubectl", "create", "secret", "generic", name, "-n", namespace, *literals] if name == STORE_SECRET:
                assert [literal.split("=")[1] for literal in literals] == list(STORE_KEYS)
                installed.give_keys(namespace)
            case ["kubectl", "create", "secret", "generic", name, "-n", namespace, literal]:
                key, _, example = literal.removeprefix("--from-literal=").partition("=")
                assert installed.catalog.partition("://")[0] == example.partition("://")[0]
                data = {key: base64.b64encode(installed.catalog.encode()).decode()}
                secrets = f"/api/v1/namespaces/{namespace}/secrets"
                cluster.create(secrets, {"metadata": {"name": name}, "data": data})
            case ["kubectl", "port-forward", "-n", namespace, service, port, "&"]:
                found = cluster.get(f"/api/v1/namespaces/{namespace}/services/{service.removeprefix('service/')}")
                assert [each["port"] for each in found["spec"]["ports"]] == [int(port)]
            case ["helm", "install", name, chart, "-n", namespace, "-f", file, "--wait"]:
                self._check(name, chart, namespace)
                installed.install(self.values(file))
            case ["helm", "test", name, "-n", namespace]:
                self._check(name, "helm/epochal", namespace)
                self.output[command] = str(installed.helm.test(name, timeout=300, logs=True))
            case ["epochal", *arguments]:
                if arguments[0] == "get":
                    self._wait_for_key(*arguments[1:])
                self.output[command] = installed.run(*arguments, folder=self._folder)
            case _:
                raise AssertionError(f"{PAGE} has a command that this test cannot run: {command}")

    def _wait_for_key(self, application: str, table: str, key: str) -> None:
        """Wait for the first value of the key, which needs running pods and a committed epoch."""

        def has_value() -> bool:
            try:
                return bool(client.application(application).state(table).get(key).value)
            except (NotFound, NotYetCommitted):
                return False

        with self._installed.client() as client:
            self._installed.eventually(has_value)

    def _check(self, name: str, chart: str, namespace: str) -> None:
        assert (name, ROOT / chart, namespace) == (RELEASE, CHART, NAMESPACE)


def _secret_value(command: str, installed: Installation) -> str:
    """Return the value that ``kubectl get secret .. | base64 -d`` prints."""
    words: Sequence[str] = shlex.split(command)
    match words:
        case ["kubectl", "get", "secret", name, "-n", namespace, "-o", path, "|", "base64", "-d"]:
            key = path.removeprefix("jsonpath={.data.").removesuffix("}")
            data = installed.cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
            return base64.b64decode(data[key]).decode()
    raise AssertionError(f"{PAGE} reads a secret in a way that this test cannot: {command}")
