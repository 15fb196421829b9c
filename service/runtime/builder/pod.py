"""``python -m epochal.service.runtime.builder.pod NAME WARM``: a builder in its own pod, for one request.

The pod runs a builder process like that of a control plane on its machine, but without the control plane's secrets, and
a client that fetches the request from the control plane and returns the answer. It ends after the answer, or when it is
no longer needed. An author's code can reach everything in the pod: its token, and with it the pod's own request and
answer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from epochal.background.service import BackgroundService
from epochal.driver.pool_client import PodClient, PodNotNeeded
from epochal.errors import ArtifactError, EpochalError
from epochal.logs import configure, log_format
from epochal.service.domain.building import BuildAnswer, BuildError, BuildRequest, TrialOf
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
from epochal.store_variables import object_store_variables
from epochal.wire.internal_api import WAIT_SECONDS
from epochal.wire.projects import DEFAULT_PROJECT

log = logging.getLogger("epochal.builder")

_WARMING_SECONDS = 0.5
"""Interval between checks whether Spark has started. Requests that arrive earlier begin without it."""
_NEEDED_SECONDS = 3.0
_TERMINATION_MESSAGE = Path("/dev/termination-log")


def main() -> int:
    """Run the pod and return its exit code, which is 0 also if the pod was not needed."""
    configure(log_format(), logging.INFO, sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    name, warm = sys.argv[1], int(sys.argv[2])
    folder = Path.home()  # the pod's own volume
    try:
        client = PodClient.of(name, os.environ)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except (EpochalError, OSError) as error:
        log.error("this pod cannot build anything: %s", error)
        _leave_behind(str(error))
        return 1
    builder = SubprocessBuilder(warm=warm, once=True, variables=object_store_variables(os.environ))
    builder.open()
    try:
        request = BuildRequest.model_validate_json(_work(client, builder, warm))
        client.answer(_answer(client, builder, request, folder / "code"))
        log.info("answered: %s", request.work.kind)
    except PodNotNeeded as reason:
        log.info("this pod ends: %s", reason)
        _leave_behind(str(reason))
    finally:
        builder.close()
    return 0


def _leave_behind(reason: str) -> None:
    """Write the reason to the pod's status, where the control plane reads why no answer arrived.

    The node creates the file. Outside a pod the file does not exist and is not created.
    """
    with suppress(OSError), _TERMINATION_MESSAGE.open("r+") as message:
        message.truncate()
        message.write(reason)


def _work(client: PodClient, builder: SubprocessBuilder, warm: int) -> bytes:
    while True:
        is_ready = builder.spares.ready >= warm
        work = client.work(is_ready, WAIT_SECONDS if is_ready else _WARMING_SECONDS)
        if work is not None:
            return work


def _answer(client: PodClient, builder: SubprocessBuilder, request: BuildRequest, code: Path) -> bytes:
    not_needed: list[PodNotNeeded] = []

    def look() -> None:
        try:
            client.check_needed()
        except PodNotNeeded as reason:
            not_needed.append(reason)
            service.stop()

    def meanwhile() -> None:
        if not_needed:
            raise not_needed[0]

    service = BackgroundService("needed", look, _NEEDED_SECONDS, delay=_NEEDED_SECONDS)
    service.start()
    try:
        # All secrets in the pod's environment belong to its project, regardless of the project's name.
        return builder.exchange(DEFAULT_PROJECT, with_code_here(client, request, code), meanwhile)
    except EpochalError as error:
        return BuildAnswer(error=BuildError(slug=error.slug, message=error.message)).model_dump_json().encode()
    finally:
        service.stop(timeout=0)


def with_code_here(client: PodClient, request: BuildRequest, folder: Path) -> BuildRequest:
    """Fetch the code of the request. Raises ``ArtifactError`` if the received bytes do not match."""
    changed: dict[str, object] = {"artifact": _fetched(client, request.artifact, folder)}
    if isinstance(request.work, TrialOf):
        artifact = _fetched(client, request.work.producer.artifact, folder)
        producer = request.work.producer.model_copy(update={"artifact": artifact})
        changed["work"] = request.work.model_copy(update={"producer": producer})
    return request.model_copy(update=changed)


def _fetched(client: PodClient, artifact: Path, folder: Path) -> Path:
    """Fetch one artifact. ``artifact``: its sha256 and the file name chosen by its author."""
    sha256, filename = artifact.parts
    content = client.artifact(sha256)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ArtifactError(f"The artifact {sha256} ({filename}) was changed in transit. Try again.")
    path = folder / sha256 / filename
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise ArtifactError(f"The artifact {sha256} cannot be written to {path}: {error.strerror}.") from error
    return path


if __name__ == "__main__":
    sys.exit(main())
