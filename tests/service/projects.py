"""Projects over HTTP, as seen by their own admins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from tests.service.conftest import Plane


SECRET = "of-b-alone"
"""Part of every name, parameter and file of the project ``b``."""


@dataclass(frozen=True)
class Project:
    """One project, over HTTP with its own admin token."""

    plane: Plane
    name: str
    client: httpx.Client

    def url(self, path: str) -> str:
        return f"/v1/projects/{self.name}/{path}"

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(self.url(path), params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, expect: int, **body: Any) -> Any:
        answer = self.client.post(self.url(path), json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()

    def artifact(self, content: str, **described: Any) -> str:
        text = "# " + json.dumps({"sinks": {"out": "files:{out}"}, "content": content, **described})
        answer = self.client.post(self.url("artifacts"), params={"filename": "code.py"}, content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def application(self, name: str, expect: int = 201, **more: Any) -> Any:
        body = {"name": name, "parameters": {"out": f"/data/{self.name}/{name}"}, **more}
        return self.post("applications", expect, **({"artifact": self.artifact(self.name)} | body))

    def wait(self, operation: str) -> None:
        """Wait until the operation has succeeded."""
        eventually(lambda: self.get(f"operations/{operation}")["state"] != "running")
        found = self.get(f"operations/{operation}")
        assert found["state"] == "succeeded", found

    def token(self, role: str, name: str) -> str:
        return str(self.post("tokens", 201, name=name, role=role)["token"])


def project(plane: Plane, name: str, **quotas: int) -> Project:
    plane.post("/v1/projects", 201, name=name, quotas=quotas)
    answer = plane.client.post(f"/v1/projects/{name}/tokens", json={"name": "its-admin", "role": "admin"})
    assert answer.status_code == 201, answer.text
    return Project(plane, name, plane.as_bearer(answer.json()["token"]))
