"""Pipelines that run although submission rejects them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from tests.mutants.mutant import change, mutant

HARNESS = "tests/spark/test_harness.py::"
REFUSED = HARNESS + "test_harness_refuses_with_the_same_message_as_submit"
UPGRADES = HARNESS + "test_upgrade_continues_the_state_or_is_refused_as_in_the_service"
SESSIONS = HARNESS + "test_time_zone_of_the_session_does_not_change_the_result"
RUN = "tests/service/test_notebook.py::test_run_and_show_refuse_the_same_pipelines_as_submit"


@mutant("harness: pipelines that submission rejects are run", REFUSED)
def _unchecked_tests() -> None:
    from epochal.pipeline import analysis
    from epochal.testing import harness_engine

    def unchecked(analyse: Any) -> Any:
        def wrong(*arguments: Any, **options: Any) -> Any:
            with (
                patch.object(analysis, "check_graph", lambda graph: None),
                patch.object(analysis, "_check_inputs", lambda graph, frames: None),
            ):
                return analyse(*arguments, **options)

        return wrong

    change(harness_engine, "analyse", unchecked)


@mutant("harness: an upgrade is not checked against the existing state", UPGRADES)
def _upgrades_unchecked() -> None:
    from epochal.engine import program, reconfiguration
    from epochal.testing import harness_engine

    def unchecked(check: Any) -> Any:
        return lambda store, reference, program: ()

    for module in (program, reconfiguration, harness_engine):
        change(module, "check_continues", unchecked)


@mutant("harness: epochs use the settings of the caller's session", SESSIONS)
def _session_of_the_test() -> None:
    from epochal.testing import harness

    change(harness, "derived_session", lambda _: lambda running, configuration: running)


@mutant("run: pipelines are not analysed before they run", RUN)
def _run_unchecked() -> None:
    from epochal.cli import local_run

    change(local_run, "analyse", lambda _: lambda *graph, **options: None)
