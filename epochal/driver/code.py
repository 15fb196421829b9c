"""The code that a driver runs: fetched from the control plane, since nothing of that is on the driver's machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from epochal.contracts.configuration import Parameters
from epochal.driver.orders import ArtifactOrder
from epochal.errors import ArtifactError
from epochal.pipeline.artifact import load_graph
from epochal.pipeline.graph import Graph

Fetch = Callable[[str], bytes]
"""The bytes of the artifact with this sha256."""


def fetched_graph(fetch: Fetch, artifact: ArtifactOrder, parameters: Parameters, folder: Path) -> Graph:
    """The graph that the code makes of the parameters. ``folder``: where the code stays, for tracebacks to show it.

    Raises ``ArtifactError`` also when what came is not the artifact; and what loading it raises.
    """
    content = fetch(artifact.sha256)
    found = hashlib.sha256(content).hexdigest()
    if found != artifact.sha256:
        raise ArtifactError(
            f"What came as artifact {artifact.sha256} ({artifact.filename}) has the sha256 {found}: it was changed on "
            "its way. Start the application again."
        )
    path = folder / artifact.sha256 / artifact.filename
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise ArtifactError(
            f"The artifact {artifact.sha256} cannot be written to {path}: {error.strerror}. Free some space there."
        ) from error
    return load_graph(path, parameters)
