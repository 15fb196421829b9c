"""The alert rules, checked by ``promtool`` and evaluated by Prometheus on a real control plane."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from epochal.service.domain.settings import Settings
from epochal.testing.servers import ServerUnavailable
from tests.kit.prometheus import PACKAGE, packages, prometheus, promtool
from tests.kit.waiting import eventually
from tests.service.test_supervision import control_plane
from tests.service.test_supervision import settings as settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
NAME = re.compile(r"\bepochal_[a-z0-9_]+\b")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("alert_rules", ROOT / "tools" / "alert_rules.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def _prometheus() -> Iterator[None]:
    try:
        packages(PACKAGE, [PACKAGE])
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    return


def test_the_rules_file_equals_the_rendered_template(tool: ModuleType) -> None:
    assert (FOLDER / "epochal.rules.yaml").read_text() == tool.rendered({})
    assert "for: 7s" in tool.rendered({"leader_for": "7s"}) and "@{" not in tool.rendered({})
    with pytest.raises(KeyError, match="novelty"):
        tool.rendered({"novelty": "1"})


def test_rules_use_documented_metrics_only() -> None:
    documented = set(
        re.findall(r"^\| `(epochal_\w+)`", (ROOT / "docs/operations/observability.md").read_text(), re.MULTILINE)
    )
    text = (FOLDER / "epochal.rules.yaml").read_text()
    expressions = re.sub(r"\{__name__=~[^}]*\}", "", text)
    used = {name.removesuffix("_bucket") for name in NAME.findall(expressions)}
    used -= set(re.findall(r"record: \w+:(epochal_\w+)", text)) - documented
    assert used <= documented | {"epochal_rules_yaml"}, used - documented
    for name in ("last_commit", "idle", "running_since"):
        assert f"epochal_{name}_timestamp_seconds" in documented


@pytest.mark.server
@pytest.mark.usefixtures("_prometheus")
@pytest.mark.alternating(2)
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    checked = promtool("check", "rules", "epochal.rules.yaml", directory=FOLDER)
    assert checked.returncode == 0, checked.stdout
    tested = promtool("test", "rules", "epochal.rules.test.yaml", directory=FOLDER)
    assert tested.returncode == 0, tested.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
@pytest.mark.usefixtures("_prometheus")
def test_no_commit_alert_fires_when_a_driver_dies(settings: Settings, tool: ModuleType) -> None:
    quick = {"no_commit_intervals": "1", "no_commit_seconds": "3", "no_commit_for": "1s"}
    patient = {"max_restarts": 5, "window_seconds": 600, "backoff_seconds": 600, "backoff_limit_seconds": 600}
    with control_plane(settings) as plane:
        plane.submit("run", patient)
        plane.wait_for_epochs()
        target = {f"{settings.host}:{settings.port}": settings.admin_token_file}
        with prometheus(target, tool.rendered(quick)) as server:
            eventually(lambda: value(server.query('epochal_application_state{application="flights"}')) == 1)
            eventually(lambda: value(server.query("epochal_committed_epochs_total")) > 0)
            assert not server.firing()
            plane.process.signal_group(9)
            eventually(lambda: "EpochalNoCommit" in server.firing())
            assert server.firing()["EpochalNoCommit"]["application"] == "flights"
            assert "EpochalApplicationFailed" not in server.firing()


def value(result: list[dict[str, list[str]]]) -> float:
    return float(result[0]["value"][1]) if result else 0.0
