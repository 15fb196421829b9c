"""Masters and modes of Spark that a configuration may select."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epochal.cli.local_run import checked_configuration
from epochal.errors import OptionError
from epochal.wire.configuration import merged_configuration

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"master": "sc://spark.example:15002"}, "configuration.master: 'sc://spark.example:15002'"),
        ({"spark": {"spark.remote": "sc://spark.example:15002"}}, "configuration.spark: spark.remote"),
        ({"spark": {"spark.api.mode": "Connect"}}, "configuration.spark: spark.api.mode=connect"),
    ],
)
def test_spark_connect_is_refused_with_the_alternative(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError) as refused:
        merged_configuration({}, changes)
    assert refused.value.message.startswith(f"{named} selects Spark Connect")
    assert "spark://HOST:PORT" in refused.value.message
    with pytest.raises(OptionError, match="selects Spark Connect"):
        checked_configuration(changes)  # for `epochal run`


@pytest.mark.parametrize(
    "changes",
    [
        {"master": "local[4]"},
        {"master": "spark://127.0.0.1:7077"},
        {"master": "k8s://https://kubernetes.default.svc"},
        {"spark": {"spark.api.mode": "classic"}},
    ],
)
def test_other_masters_are_accepted(changes: dict[str, Any]) -> None:
    merged_configuration({}, changes)


@pytest.mark.parametrize(
    "master", ["spakr://host:7077", "local[two]", "mesos://host:5050", "", "local[2]; rm", "k8s://"]
)
def test_invalid_masters_are_refused_before_spark_starts(master: str) -> None:
    with pytest.raises(OptionError, match=r"configuration.master: .* Use local\[n\]"):
        merged_configuration({}, {"master": master})


def rows() -> list[list[str]]:
    """The table of `docs/operations/running.md`: masters, Spark's place, drivers as processes, drivers as pods."""
    section = (ROOT / "docs/operations/running.md").read_text().split("### Where Spark runs")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in table[1:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_documented_modes_match_their_tests_and_refusals(row: list[str]) -> None:
    """A mode that the table calls supported has tests; a mode that no driver supports is refused."""
    masters, _, processes, pods = row
    tests = TESTS.get(masters, ())
    assert all((ROOT / path).exists() for path in tests)
    assert bool(tests) == ("yes" in {processes.partition(",")[0], pods})
    for example in EXAMPLES[masters]:
        if (processes, pods) == ("no", "no"):
            with pytest.raises(OptionError):
                merged_configuration({}, example)
        else:
            merged_configuration({}, example)


TESTS = {
    "`local[n]`": ("tests/spark", "tests/service", "tests/kubernetes/test_driver_pods.py"),
    "`spark://HOST:PORT`": ("tests/servers/cluster",),
    "`k8s://https://kubernetes.default.svc`": ("tests/kubernetes/test_driver_pods.py",),
}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "`local[n]`": [{"master": "local"}, {"master": "local[2]"}, {"master": "local[*]"}, {"master": "local[4, 3]"}],
    "`spark://HOST:PORT`": [{"master": "spark://a.example:7077"}, {"master": "spark://a:7077,b:7077"}],
    "`k8s://https://kubernetes.default.svc`": [{"master": "k8s://https://kubernetes.default.svc"}],
    "`local-cluster[n,c,m]`, `yarn`": [{"master": "local-cluster[2,1,512]"}, {"master": "yarn"}],
    "`sc://HOST:PORT`, `spark.remote`, `spark.api.mode=connect`": [
        {"master": "sc://h:1"},
        {"spark": {"spark.remote": "sc://h"}},
        {"spark": {"spark.api.mode": "connect"}},
    ],
}


def test_the_table_has_all_modes() -> None:
    assert {row[0] for row in rows()} == set(EXAMPLES)
