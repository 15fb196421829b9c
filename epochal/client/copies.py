"""Forks into another project: copies, made by an export from the one and an import into the other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochal.client.bundles import Exports, Imports
from epochal.client.models import Application
from epochal.client.operations import Operations
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.errors import EnvironmentProblem, EpochalError
from epochal.wire.bodies import read


def copied_into(
    source: Transport,
    application: str,
    target: Transport,
    name: str,
    *,
    epoch: int | None,
    savepoint: str | None,
    tag: str | None,
    parameters: Mapping[str, Any] | None,
    configuration: Mapping[str, Any] | None,
    shadow: bool,
    start: bool,
    message: str | None,
    accept_changed: Sequence[str] = (),
    accept_partial: Sequence[str] = (),
) -> Application:
    """The new application ``name``, once it is there. ``source`` and ``target`` mean one project each.

    The bundle goes through a temporary folder of this machine, and is deleted. Raises what an export and an import
    raise, and ``EnvironmentProblem`` where the folder cannot take the bundle.
    """
    exports, imports = Exports(source, application), Imports(target)
    export = Operations(source).wait(exports.create(epoch=epoch, savepoint=savepoint, tag=tag, message=message))
    try:
        with tempfile.TemporaryDirectory(prefix="epochal-fork-") as folder:
            bundle = Path(folder) / "bundle"
            exports.fetch(export, bundle)
            upload = imports.upload(bundle)
    except OSError as error:
        raise EnvironmentProblem(
            f"The bundle of {application} cannot be kept in {tempfile.gettempdir()} for a while: {error.strerror}. "
            "Make space there, or set TMPDIR to a folder that has some."
        ) from error
    try:
        operation = imports.make(
            upload.id,
            name=name,
            parameters=parameters,
            configuration=configuration,
            shadow=shadow,
            start=start,
            message=message,
            accept_changed=accept_changed,
            accept_partial=accept_partial,
        )
    except EpochalError:
        with suppress(EpochalError):
            imports.delete(upload.id)  # nobody would go on with it
        raise
    Operations(target).wait(operation)
    return read(Application, target.get(path("applications", name)))
