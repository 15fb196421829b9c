"""The common part of builders: their verbs as requests, and the checks of answers. Each builder has its own way
to reach the process that builds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from epochal.contracts.catalog import ManifestReference, RestorePoint
from epochal.contracts.configuration import Configuration, Parameters
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
    StoreUnavailable,
    error_class,
)
from epochal.pipeline.description import GraphDescription
from epochal.service.domain.building import (
    Analyse,
    BuildAnswer,
    BuildError,
    BuildRequest,
    Describe,
    RekeyOf,
    RestorePointsOf,
    ShownOf,
    TrialOf,
    Work,
)
from epochal.service.domain.ports import Meanwhile

Result = TypeVar("Result")

DESCRIBE_SECONDS = 20.0
ANALYSE_SECONDS = 120.0
TRIAL_SECONDS = 1200.0
SHOWN_SECONDS = 60.0
REKEY_SECONDS = 4 * 3600.0
DESCRIBE_MEMORY_BYTES = 4 << 30
"""Limit of the address space, most of which is used by libraries. The JVM of an analysis limits its own memory."""
_LONGEST_MESSAGE = 4_000
_OF_A_BUILD = (
    InvalidInput,
    EpochAborted,
    SnapshotError,
    SnapshotExpired,
    StoreUnavailable,
    Conflict,
    EnvironmentProblem,
)
_USUAL: Final = Configuration()


class AskingBuilder(ABC):
    """The verbs of a :class:`~epochal.service.domain.ports.Builder`."""

    def describe(
        self, project: str, artifact: Path, parameters: Parameters, configuration: Configuration = _USUAL
    ) -> GraphDescription:
        request = _request(artifact, parameters, configuration, Describe(), DESCRIBE_SECONDS)
        return _there(self._answer(project, request.model_copy(update={"memory_bytes": DESCRIBE_MEMORY_BYTES})).graph)

    def analyse(
        self, project: str, artifact: Path, parameters: Parameters, configuration: Configuration
    ) -> GraphDescription:
        return _there(
            self._answer(project, _request(artifact, parameters, configuration, Analyse(), ANALYSE_SECONDS)).graph
        )

    def trial(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: Configuration,
        trial: TrialOf,
        meanwhile: Meanwhile,
    ) -> TrialReport:
        request = _request(artifact, parameters, configuration, trial, TRIAL_SECONDS)
        return _there(self._answer(project, request, meanwhile).trial)

    def rekey(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: Configuration,
        target: RekeyOf,
        meanwhile: Meanwhile,
    ) -> ManifestReference:
        request = _request(artifact, parameters, configuration, target, REKEY_SECONDS)
        return _there(self._answer(project, request, meanwhile).snapshot)

    def shown(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        branch: ShownOf,
        configuration: Configuration = _USUAL,
    ) -> Mapping[str, int | None]:
        return _there(self._answer(project, _request(artifact, parameters, configuration, branch, SHOWN_SECONDS)).shown)

    def restore_points(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        tables: RestorePointsOf,
        configuration: Configuration = _USUAL,
    ) -> Mapping[str, RestorePoint]:
        request = _request(artifact, parameters, configuration, tables, SHOWN_SECONDS)
        return _there(self._answer(project, request).restore_points)

    @abstractmethod
    def exchange(self, project: str, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        """Return the answer of the building process, at most :data:`LARGEST_ANSWER` bytes.

        The limit exists because the author's code runs there and could write without end. The answer is empty if the
        process ended without one or exceeded the limit. Raises the errors of ``meanwhile``, and ``EnvironmentProblem``
        if no process can be started.
        """

    def _answer(self, project: str, request: BuildRequest, meanwhile: Meanwhile = lambda: None) -> BuildAnswer:
        data = self.exchange(project, request, meanwhile)
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


def _request(
    artifact: Path, parameters: Parameters, configuration: Configuration, work: Work, seconds: float
) -> BuildRequest:
    return BuildRequest(
        artifact=artifact, parameters=parameters, configuration=configuration, work=work, seconds=seconds
    )


def _error(error: BuildError) -> EpochalError:
    """The error of a failed build: its class, and a message of bounded length without control characters.

    An author needs their own exception and its traceback, which are the message; what the code prints is not in it.
    Error classes that no build raises are rejected: the author's code could answer in the builder's place.
    """
    kind = error_class(error.slug) or PipelineError
    text = "".join(character for character in error.message if character.isprintable() or character in "\n\t")
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]}\n.. {len(text) - 2 * half} characters are left out ..\n{text[-half:]}"
    return (kind if issubclass(kind, _OF_A_BUILD) else PipelineError)(text)


def _there(result: Result | None) -> Result:
    assert result is not None  # an answer without an error contains the result
    return result
