"""Options of ``epochal up`` reach the settings of the control plane, which these tests do not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochal.cli import serving, up
from epochal.errors import OptionError
from epochal.service.domain.setting_sections import Kept
from epochal.service.domain.settings import Settings


class NotStarted:
    """Replaces the process that answers drivers."""

    def __init__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ([], Kept()),
        (
            ["--kept-events", "5", "--event-days", "0.5", "--audit-days", "30", "--kept-epochs", "200"],
            Kept(events=5, events_days=0.5, audit_days=30, epochs=200),
        ),
    ],
)
def test_retention_options_reach_the_settings(
    options: list[str], kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(serving, "serve", lambda settings, *_: seen.append(settings))
    monkeypatch.setattr(up, "InternalServer", NotStarted)
    result = CliRunner().invoke(up.app, ["--port", "0", "--home", str(tmp_path / "home"), *options])
    assert result.exit_code == 0, result.output
    assert [settings.kept for settings in seen] == [kept]


def test_a_kubernetes_file_selects_drivers_in_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(serving, "serve", lambda settings, *_: seen.append(settings))
    monkeypatch.setattr(up, "InternalServer", NotStarted)
    path = tmp_path / "kubernetes.json"
    path.write_text('{"image": "epochal:1"}')
    home = ["--port", "0", "--home", str(tmp_path / "home")]
    for options in ([], ["--kubernetes", str(path)]):
        result = CliRunner().invoke(up.app, [*home, *options])
        assert result.exit_code == 0, result.output
    local, pods = seen
    assert (local.launcher, local.kubernetes) == ("local", None)
    assert pods.launcher == "kubernetes" and pods.kubernetes is not None and pods.kubernetes.image == "epochal:1"
    path.write_text('{"image": 1}')
    result = CliRunner().invoke(up.app, [*home, "--kubernetes", str(path)])
    assert result.exit_code != 0
    assert isinstance(result.exception, OptionError) and "image" in result.exception.message
