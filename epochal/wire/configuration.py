"""Configuration of applications: the engine's model, and the checks that only the control plane can make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue

from epochal.contracts import registry
from epochal.contracts.configuration import Autoscaling, RestartStrategy
from epochal.contracts.configuration import Configuration as ApplicationConfiguration
from epochal.errors import OptionError

__all__ = [
    "ApplicationConfiguration",
    "Autoscaling",
    "RestartStrategy",
    "check_configuration",
    "merged_configuration",
    "merged_settings",
]


class _DescribedAsConfiguration:
    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(ApplicationConfiguration.__pydantic_core_schema__)


ConfigurationAnswer = Annotated[dict[str, Any], _DescribedAsConfiguration()]
"""A configuration in answers, as stored: a client of another version can change one setting and return the others
unchanged, including those that it does not support."""

RESTARTING = ("master", "spark")
"""Settings that take effect with a new driver only: resources of Spark."""

SECTIONS = ("restart", "autoscaling", "parallelisms")
"""Settings with nested settings, which are merged individually."""

_CONNECT = "sc://"
_MASTER = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[[\d\s]+,[\d\s]+,[\d\s]+\]|(spark|k8s)://\S+|yarn"
)
_SPARK_OPTION = re.compile(r"spark\.[A-Za-z0-9._-]{1,200}")


def check_configuration(configuration: ApplicationConfiguration) -> None:
    """Check a configuration. Raises ``OptionError`` for an unknown state backend, an invalid master or Spark option,
    and Spark Connect."""
    registry.find(registry.STATE_BACKENDS, configuration.state_backend)
    _check_is_no_client(configuration)
    if not _MASTER.fullmatch(configuration.master):
        raise OptionError(
            f"configuration.master: {configuration.master!r} is not a Spark master. Use local[n], spark://HOST:PORT "
            "or, in pods, k8s://https://kubernetes.default.svc (docs/operations/running.md#where-spark-runs)."
        )
    for option in configuration.spark:
        if not _SPARK_OPTION.fullmatch(option):
            raise OptionError(
                f"configuration.spark: {option!r} is not a Spark option; their names start with 'spark.'."
            )


def _check_is_no_client(configuration: ApplicationConfiguration) -> None:
    """Raises ``OptionError`` if the driver would be a client of a Spark Connect server."""
    spark = configuration.spark
    if configuration.master.startswith(_CONNECT):
        asked = f"configuration.master: {configuration.master!r}"
    elif "spark.remote" in spark:
        asked = "configuration.spark: spark.remote"
    elif spark.get("spark.api.mode", "").lower() == "connect":
        asked = "configuration.spark: spark.api.mode=connect"
    else:
        return
    raise OptionError(
        f"{asked} selects Spark Connect. A driver requires its own Spark process, in which it starts, interrupts and "
        "ends jobs; a shared server outlives a fenced attempt. Use local[n], spark://HOST:PORT "
        "or, in pods, k8s://https://kubernetes.default.svc as the master (docs/operations/running.md#where-spark-runs)."
    )


def merged_settings(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``changes`` over ``before``, including nested settings. Null removes the parallelism of an operator."""
    merged = {**before, **changes}
    for name in SECTIONS:
        if isinstance(before.get(name), Mapping) and isinstance(changes.get(name), Mapping):
            merged[name] = {**before[name], **changes[name]}
    numbers = merged.get("parallelisms")
    if isinstance(numbers, Mapping):
        merged["parallelisms"] = {operator: number for operator, number in numbers.items() if number is not None}
    return merged


def merged_configuration(before: Mapping[str, Any], changes: Mapping[str, Any]) -> ApplicationConfiguration:
    """Merge ``changes`` over ``before``, and validate. Raises ``OptionError`` with the field."""
    try:
        configuration = ApplicationConfiguration.model_validate(merged_settings(before, changes))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in ("configuration", *first["loc"]))
        raise OptionError(f"{field}: {first['msg'].removeprefix('Value error, ')}.") from None
    check_configuration(configuration)
    return configuration


def check_same_key_groups(before: ApplicationConfiguration, after: ApplicationConfiguration) -> None:
    """Raises ``OptionError`` if the number of key groups differs; it is fixed when an application is created."""
    if before.max_parallelism != after.max_parallelism:
        raise OptionError(
            f"configuration.max_parallelism cannot change from {before.max_parallelism} to {after.max_parallelism}: "
            "the state's key groups depend on it. Use `epochal rekey` to change it."
        )


def needs_restart(before: ApplicationConfiguration, after: ApplicationConfiguration) -> bool:
    """Return whether ``after`` requires a new driver."""
    return any(getattr(before, name) != getattr(after, name) for name in RESTARTING)
