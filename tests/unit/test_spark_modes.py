"""Where Spark may run: what a configuration is refused for."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.cli.local_run import checked_configuration
from epochal.errors import OptionError
from epochal.wire.configuration import merged_configuration


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"master": "sc://spark.example:15002"}, "configuration.master: 'sc://spark.example:15002'"),
        ({"spark": {"spark.remote": "sc://spark.example:15002"}}, "configuration.spark: spark.remote"),
        ({"spark": {"spark.api.mode": "Connect"}}, "configuration.spark: spark.api.mode=connect"),
    ],
)
def test_spark_connect_is_refused_with_what_to_use_instead(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError) as refused:
        merged_configuration({}, changes)
    assert refused.value.message.startswith(f"{named} asks for Spark Connect")
    assert "spark://HOST:PORT" in refused.value.message
    with pytest.raises(OptionError, match="asks for Spark Connect"):
        checked_configuration(changes)  # of `epochal run`


@pytest.mark.parametrize(
    "changes",
    [
        {"master": "local[4]"},
        {"master": "spark://127.0.0.1:7077"},
        {"master": "k8s://https://kubernetes.default.svc"},
        {"spark": {"spark.api.mode": "classic"}},
    ],
)
def test_other_masters_are_taken(changes: dict[str, Any]) -> None:
    merged_configuration({}, changes)
