"""A sink's folder on an S3 server for the sink contract, read without Epochal: by the lists of committed files."""

from __future__ import annotations

import io
import json
import secrets
from pathlib import Path
from typing import Any

import obstore
import pyarrow.csv
import pyarrow.parquet

from epochal.backends.object_files.address import ObjectLocation
from epochal.backends.object_files.sink import ObjectFilesBackend
from epochal.contracts.backend import SinkPlace
from epochal.secrets import secret
from epochal.testing.contract import SinkHarness
from epochal.testing.servers.s3 import READY_BUCKET, S3Server


class ObjectFolder(SinkHarness):
    """A folder below the server's bucket. ``endpoint``: of a proxy for the sink; the test reads directly."""

    def __init__(
        self, server: S3Server, secrets_folder: Path, format: str = "json", endpoint: str | None = None
    ) -> None:
        self.server, self.format = server, format
        self.bucket, self.path = READY_BUCKET, f"tests/{secrets.token_hex(8)}/out"
        self.store = server.store(self.bucket, self.path)
        self.options = options_of(server, secrets_folder, endpoint)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.path}"

    def make(self) -> ObjectFilesBackend:
        place = ObjectLocation.checked("files.sink", self.url, self.options)
        return ObjectFilesBackend(SinkPlace("out"), place, self.format)

    def visible(self) -> list[dict[str, object]]:
        return [row for path in sorted(self.committed()) for row in self._read(path)]

    def committed(self) -> set[str]:
        """The paths that the lists name."""
        return {file["path"] for content in self.lists().values() for file in content["files"]}

    def lists(self) -> dict[str, dict[str, Any]]:
        return {path: json.loads(bytes(obstore.get(self.store, path).bytes())) for path in self.objects("_epochs")}

    def objects(self, folder: str = "") -> list[str]:
        return [found["path"] for page in obstore.list(self.store, folder or None) for found in page]

    def leftovers(self) -> list[str]:
        aside = {file["path"] for content in self.lists().values() for file in content["aside"]}
        return sorted(set(self.objects("_data")) - self.committed() - aside)

    def _read(self, path: str) -> list[dict[str, object]]:
        data = bytes(obstore.get(self.store, path).bytes())
        match self.format:
            case "parquet":
                return list(pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist())
            case "csv":
                options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
                return list(pyarrow.csv.read_csv(io.BytesIO(data), convert_options=options).to_pylist())
            case _:
                return [json.loads(line) for line in data.splitlines()]


def options_of(server: S3Server, folder: Path, endpoint: str | None = None) -> dict[str, Any]:
    """The options with which connectors reach the server. The secrets are files in ``folder``."""
    variables = server.environment(endpoint)
    (folder / "key").write_text(variables["AWS_ACCESS_KEY_ID"])
    (folder / "secret").write_text(variables["AWS_SECRET_ACCESS_KEY"])
    return {
        "endpoint": variables["AWS_ENDPOINT_URL"],
        "region": variables["AWS_REGION"],
        "access_key_id": secret(f"file:{folder / 'key'}"),
        "secret_access_key": secret(f"file:{folder / 'secret'}"),
    }
