"""The control plane's side: a warm builder process, kept alive, and requests to it."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.parameters import Parameters
from epochal.engine.settings import Configuration
from epochal.engine.trial_report import TrialReport
from epochal.errors import (
    Conflict,
    EnvironmentProblem,
    EpochAborted,
    EpochalError,
    InvalidInput,
    PipelineError,
    SnapshotError,
    SnapshotExpired,
    error_class,
)
from epochal.pipeline.description import GraphDescription
from epochal.service.domain.building import (
    AS_EVER,
    FOR_WARM,
    Analyse,
    BuildAnswer,
    BuildError,
    BuildRequest,
    Describe,
    RekeyOf,
    ShownOf,
    TrialOf,
    Work,
    suits_warm,
)
from epochal.service.domain.ports import Meanwhile, SpareFigures
from epochal.service.runtime.isolation import ProcessUser, identity_of
from epochal.service.runtime.launchers.local import driver_environment
from epochal.service.runtime.launchers.processes import memory_of_session

log = logging.getLogger("epochal.builder")

Result = TypeVar("Result")

DESCRIBE_SECONDS = 20.0
ANALYSE_SECONDS = 120.0
TRIAL_SECONDS = 1200.0
SHOWN_SECONDS = 60.0
REKEY_SECONDS = 4 * 3600.0
DESCRIBE_MEMORY_BYTES = 4 << 30
"""Of address space, most of which is libraries'. The JVM of an analysis limits its own memory."""

_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
"""Between two looks whether anybody still wants the answer."""
_READ_BYTES = 1 << 16
_LARGEST_ANSWER = 64 << 20
"""In bytes. The author's code runs in the process that answers, and could go on for ever."""
_LONGEST_MESSAGE = 4_000
_OF_A_BUILD = (InvalidInput, EpochAborted, SnapshotError, SnapshotExpired, Conflict, EnvironmentProblem)


class SubprocessBuilder:
    """A :class:`~epochal.service.domain.ports.Builder`. Requests run at the same time, each in a child of its own."""

    def __init__(self, user: ProcessUser | None = None, home: Path | None = None, warm: int = 0) -> None:
        """``user``: who the builder runs as, with ``home`` as its home and working folder. ``warm``: so many children
        are kept that have Spark started."""
        self._warm = warm
        self._states: list[tuple[int, bool]] = []
        self._said = b""
        self._user = user
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Start the warm process; it is ready a second or two later, and requests wait for it."""
        with self._lock:
            self._start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._control is not None:
                self._control.close()  # which it ends at
            if self._process is not None:
                try:
                    self._process.wait(timeout=_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()

    @property
    def spares(self) -> SpareFigures:
        with self._lock, suppress(OSError):
            if self._control is not None:
                *lines, self._said = (self._said + self._control.recv(1 << 20, socket.MSG_DONTWAIT)).split(b"\n")
                self._states = json.loads(lines[-1]) if lines else self._states
        ready = sum(is_ready for _, is_ready in self._states)
        return SpareFigures(
            limit=self._warm,
            ready=ready,
            warming=len(self._states) - ready,
            bytes=sum(memory_of_session(process) for process, _ in self._states),
        )

    def describe(self, artifact: Path, parameters: Parameters) -> GraphDescription:
        request = _request(artifact, parameters, Configuration(), Describe(), DESCRIBE_SECONDS)
        return _there(self._answer(request.model_copy(update={"memory_bytes": DESCRIBE_MEMORY_BYTES})).graph)

    def analyse(self, artifact: Path, parameters: Parameters, configuration: Configuration) -> GraphDescription:
        return _there(self._answer(_request(artifact, parameters, configuration, Analyse(), ANALYSE_SECONDS)).graph)

    def trial(
        self,
        artifact: Path,
        parameters: Parameters,
        configuration: Configuration,
        trial: TrialOf,
        meanwhile: Meanwhile,
    ) -> TrialReport:
        request = _request(artifact, parameters, configuration, trial, TRIAL_SECONDS)
        return _there(self._answer(request, meanwhile).trial)

    def rekey(
        self,
        artifact: Path,
        parameters: Parameters,
        configuration: Configuration,
        target: RekeyOf,
        meanwhile: Meanwhile,
    ) -> ManifestReference:
        request = _request(artifact, parameters, configuration, target, REKEY_SECONDS)
        return _there(self._answer(request, meanwhile).snapshot)

    def shown(self, artifact: Path, parameters: Parameters, branch: ShownOf) -> Mapping[str, int | None]:
        return _there(self._answer(_request(artifact, parameters, Configuration(), branch, SHOWN_SECONDS)).shown)

    def _answer(self, request: BuildRequest, meanwhile: Meanwhile = lambda: None) -> BuildAnswer:
        data = self._exchange(request, meanwhile)
        if not data:
            raise PipelineError(
                f"Building the pipeline took over {request.seconds:g} s, or too much memory, or ended its process. "
                "Move work out of module level and build() into the pipeline's functions."
            )
        try:
            answer = BuildAnswer.model_validate_json(data)
        except ValidationError:
            raise PipelineError("The code that builds the pipeline answered in the builder's place.") from None
        if answer.error is not None:
            raise _error(answer.error)
        return answer

    def _exchange(self, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        """The child's answer; empty when it ended without one. The child ends with the connection."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                self._send(theirs, FOR_WARM if suits_warm(request) else AS_EVER)
            finally:
                theirs.close()
            # The warm process may still be starting, which its first request waits for.
            patience = request.seconds + 30.0
            deadline = time.monotonic() + patience
            ours.settimeout(patience)
            parts, size = [], 0
            try:
                ours.sendall(request.model_dump_json().encode() + b"\n")
                ours.settimeout(_LOOK_SECONDS)
                while part := _received(ours, deadline, meanwhile):
                    parts.append(part)
                    size += len(part)
                    if size > _LARGEST_ANSWER:
                        return b""
            except (TimeoutError, ConnectionError):
                return b""
            return b"".join(parts)

    def _send(self, connection: socket.socket, kind: bytes) -> None:
        """Hand the connection to the warm process; to a new one, when the old one is gone."""
        with self._lock:
            for _ in range(2):
                if self._process is None or self._process.poll() is not None:
                    self._start()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [kind], [connection.fileno()])
                    return
                except OSError as error:
                    log.warning("the builder process is gone (%s); starting another", error)
                    assert self._process is not None
                    self._process.kill()
                    self._process.wait()
        raise EnvironmentProblem("The builder process does not stay alive; see the control plane's log.")

    def _start(self) -> None:
        if self._closed:
            raise EnvironmentProblem("The control plane is closing.")
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair()
        self._control, self._states, self._said = ours, [], b""
        environment = driver_environment(os.environ)
        if self._user is not None and self._home is not None:
            environment = self._user.environment(environment, self._home)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epochal.service.runtime.builder", str(self._warm)],
                stdin=theirs.fileno(),
                # What authors print while their pipeline is built belongs to nobody.
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=None if self._user is None else self._home,
                start_new_session=True,
                **identity_of(self._user),
            )


def _received(connection: socket.socket, deadline: float, meanwhile: Meanwhile) -> bytes:
    """Raises ``TimeoutError`` at the deadline, and what ``meanwhile`` raises."""
    while True:
        meanwhile()
        try:
            return connection.recv(_READ_BYTES)
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise


def _request(
    artifact: Path, parameters: Parameters, configuration: Configuration, work: Work, seconds: float
) -> BuildRequest:
    return BuildRequest(
        artifact=artifact, parameters=parameters, configuration=configuration, work=work, seconds=seconds
    )


def _error(error: BuildError) -> EpochalError:
    """What a caller hears of a failed build: the kind, and a message of bounded length without control characters.

    An author needs their own exception and its traceback, which are the message; what the code prints is not in it.
    An error that no build has is not believed: the author's code could answer in the builder's place.
    """
    kind = error_class(error.slug) or PipelineError
    text = "".join(character for character in error.message if character.isprintable() or character in "\n\t")
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]}\n.. {len(text) - 2 * half} characters are left out ..\n{text[-half:]}"
    return (kind if issubclass(kind, _OF_A_BUILD) else PipelineError)(text)


def _there(result: Result | None) -> Result:
    assert result is not None  # an answer without an error has what was asked for
    return result
