"""What there is to do so that an application becomes what it is to be: verbs in their order. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from epochal.cli.desired import DesiredApplication
from epochal.client import Application
from epochal.errors import OptionError
from epochal.wire.configuration import ApplicationConfiguration

Verb = Literal["create", "upgrade", "rescale", "start", "stop"]
RUNS = ("starting", "running")


class Change(BaseModel):
    """A part of an application that becomes another one, by its path: ``configuration.parallelism``."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Steps:
    """``changes``: what ``upgrade`` or ``rescale`` changes. ``configuration``: the whole, as it is to be."""

    verbs: tuple[Verb, ...]
    changes: tuple[Change, ...]
    configuration: ApplicationConfiguration


def steps(now: Application | None, desired: DesiredApplication, artifact: str) -> Steps:
    """``now`` is ``None`` where there is no such application. ``artifact``: the sha256 of the code that it is to have.

    Raises ``OptionError`` where it has a configuration that this version cannot read.
    """
    if now is None:
        return Steps(("create", "start") if desired.state == "running" else ("create",), (), desired.configuration)
    configured = _configured(now)
    configuration = _with_what_stays(desired.configuration, configured)
    before = {"code": now.artifact, "parameters": now.parameters, "configuration": configured.model_dump(mode="json")}
    after = {
        "code": artifact,
        "parameters": desired.parameters,
        "configuration": configuration.model_dump(mode="json"),
    }
    changes = tuple(_changes(before, after))
    verbs: list[Verb] = []
    if desired.state == "stopped" and now.state in (*RUNS, "stopping"):
        verbs.append("stop")
    if changes:
        verbs.append("rescale" if [each.path for each in changes] == ["configuration.parallelism"] else "upgrade")
    if desired.state == "running" and now.state not in RUNS and (changes or not _has_ended(now)):
        verbs.append("start")
    return Steps(tuple(verbs), changes, configuration)


def _configured(now: Application) -> ApplicationConfiguration:
    try:
        return ApplicationConfiguration.model_validate(now.configuration)
    except ValidationError as error:
        setting = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise OptionError(
            f"Application {now.name!r} has a setting that this version of epochal does not know ({setting}): take the "
            "version of the control plane."
        ) from None


def _with_what_stays(desired: ApplicationConfiguration, now: ApplicationConfiguration) -> ApplicationConfiguration:
    """Key groups stay unless they are said: no upgrade changes them. Where it scales by itself, the parallelism that it
    has come to stays, within the bounds. Raises ``OptionError``."""
    kept: dict[str, Any] = {}
    if "max_parallelism" not in desired.model_fields_set:
        kept["max_parallelism"] = now.max_parallelism
    if desired.autoscaling is not None:
        kept["parallelism"] = min(max(now.parallelism, desired.autoscaling.least), desired.autoscaling.greatest)
    try:
        return ApplicationConfiguration.model_validate({**desired.model_dump(), **kept})
    except ValidationError as error:
        raise OptionError(f"configuration: {error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None


def _has_ended(now: Application) -> bool:
    """By itself: its sources have ended, and everything that waited has come out. No start can follow."""
    return now.state == "stopped" and now.head is not None and now.head.drained


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> Iterator[Change]:
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, f"{above}{name}.")
        elif old != new or (name in before) != (name in after):
            yield Change(path=f"{above}{name}", before=old, after=new)
