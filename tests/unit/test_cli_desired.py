"""``epochal apply``: validation of files and the steps planned from them, without a control plane."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from epochal.cli.desired import DesiredApplication, read_desired, schema, steps
from epochal.client import Application
from epochal.errors import ArtifactError, InvalidInput, OptionError
from epochal.wire.applications import Head
from epochal.wire.configuration import ApplicationConfiguration

CODE = "a" * 64
OTHER_CODE = "b" * 64
NOW = datetime(2026, 5, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def write_file(folder: Path, text: str, name: str = "application.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def application(state: str = "running", drained: bool = False, **changes: Any) -> Application:
    """Answer of a control plane: version 1, no parameters, default configuration."""
    head = Head(branch="b", epoch=5, committed_at=NOW, drained=drained)
    fields = {
        "name": "flights",
        "project": "default",
        "revision": "1",
        "imported_from": None,
        "state": state,
        "detail": None,
        "branch": "b",
        "version": 1,
        "artifact": CODE,
        "parameters": {},
        "configuration": ApplicationConfiguration().model_dump(mode="json"),
        "shadow": False,
        "head": head,
        "parent": None,
        "execution": "e",
        "failure": None,
        "restarts": None,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Application.model_validate({**fields, **changes})


def desired(**fields: Any) -> DesiredApplication:
    return DesiredApplication.model_validate({"name": "flights", "artifact": CODE, **fields})


def test_files_hold_several_documents_with_relative_code_paths(tmp_path: Path) -> None:
    code = tmp_path / "flights.py"
    code.write_text("pipeline = ...\n")
    file = write_file(
        tmp_path, f"name: flights\ncode: flights.py\n---\n---\nname: delays\nartifact: {CODE}\nstate: stopped\n"
    )
    first, second = read_desired([file])
    assert (first.application.name, first.code, first.application.state) == ("flights", code, "running")
    assert len(first.sha256()) == 64
    assert (second.sha256(), second.application.state, second.code) == (CODE, "stopped", None)
    code.unlink()
    with pytest.raises(ArtifactError, match=r"document 1: code: .*flights\.py cannot be read"):
        first.sha256()


def test_unquoted_values_follow_json(tmp_path: Path) -> None:
    """Other rules of YAML would turn country codes into booleans, versions into dates and times into numbers."""
    text = (
        "name: flights\nartifact: " + CODE + "\nparameters:\n"
        "  country: no\n  switch: on\n  day: 2026-05-01\n  code: 010\n  at: 12:30\n  empty:\n  none: null\n"
        "  yes: true\n  count: -3\n  share: 0.5\n  large: 1e6\n  text: '7'\n  nested: {list: [1, x, {y: 2}]}\n"
    )
    (found,) = read_desired([write_file(tmp_path, text)])
    assert found.application.parameters == {
        "country": "no",
        "switch": "on",
        "day": "2026-05-01",
        "code": "010",
        "at": "12:30",
        "empty": None,
        "none": None,
        "yes": True,
        "count": -3,
        "share": 0.5,
        "large": 1e6,
        "text": "7",
        "nested": {"list": [1, "x", {"y": 2}]},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: flights", r"application\.yaml: the document: give one of code \(a path\) and artifact \(a SHA-256\)\."),
        (f"name: flights\ncode: x.py\nartifact: {CODE}", "give one of code"),
        (
            "name: flights\ncode: x.py\nparameter: {}",
            r"parameter: unknown field\. Did you mean 'parameters'\?",
        ),
        (
            "name: flights\ncode: x.py\nconfiguration: {paralelism: 3}",
            r"configuration\.paralelism: unknown field\. Did you mean 'parallelism'\?",
        ),
        (
            "name: flights\ncode: x.py\nconfiguration: {autoscaling: {greatest: 4, lest: 1}}",
            r"configuration\.autoscaling\.lest: unknown field\. Did you mean 'least'\?",
        ),
        ("name: flights\ncode: x.py\nconfiguration: {parallelism: 0}", r"configuration\.parallelism: .*greater than"),
        ("name: flights\ncode: x.py\nconfiguration: {parallelism: 300}", "configuration: parallelism 300 is above"),
        ("name: Flights\ncode: x.py", "name: String should match pattern"),
        ("name: flights\ncode: x.py\nstate: paused", "state: Input should be 'running' or 'stopped'"),
        ("- name: flights", "the document: must be a mapping, not list"),
        ("name: flights\ncode: x.py\ncode: y.py", "line 3: duplicate key 'code'"),
        ("name: [flights", "line 1: "),
        ("", "contains no document"),
        ("name: flights\ncode: x.py\n---\nname: flights\ncode: y.py", "'flights' is also described in .*document 1"),
    ],
)
def test_errors_name_the_path_of_the_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_desired([write_file(tmp_path, text)])


def test_errors_of_all_files_are_reported_together(tmp_path: Path) -> None:
    one = write_file(tmp_path, "name: flights\ncode: x.py\ncolour: red", "one.yaml")
    two = write_file(tmp_path, "name: delays\nkode: x.py", "two.yaml")
    with pytest.raises(InvalidInput) as refused:
        read_desired([one, two])
    assert "one.yaml: colour: " in refused.value.message and "two.yaml: kode: " in refused.value.message
    with pytest.raises(InvalidInput, match=r"absent\.yaml cannot be read: No such file"):
        read_desired([str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("now", "fields", "verbs", "changed"),
    [
        (None, {}, ("create", "start"), []),
        (None, {"state": "stopped"}, ("create",), []),
        (application(), {}, (), []),
        (application("starting"), {}, (), []),
        (application("stopped"), {"state": "stopped"}, (), []),
        (application("created"), {"state": "stopped"}, (), []),
        (application("stopped"), {}, ("start",), []),
        (application("failed"), {}, ("start",), []),
        (application("stopping"), {}, ("start",), []),
        (application("stopped", drained=True), {}, (), []),
        (application(), {"state": "stopped"}, ("stop",), []),
        (application(), {"parameters": {"limit": 1}}, ("upgrade",), ["parameters.limit"]),
        (application(), {"artifact": OTHER_CODE}, ("upgrade",), ["code"]),
        (application(), {"configuration": {"parallelism": 4}}, ("rescale",), ["configuration.parallelism"]),
        (
            application(),
            {"configuration": {"parallelism": 4, "retained_epochs": 5}},
            ("upgrade",),
            ["configuration.parallelism", "configuration.retained_epochs"],
        ),
        (application("stopped"), {"configuration": {"parallelism": 4}}, ("rescale", "start"), None),
        (
            application(),
            {"configuration": {"parallelism": 4, "parallelisms": {"spent": 16}}},
            ("rescale",),
            ["configuration.parallelism", "configuration.parallelisms.spent"],
        ),
        (application(), {"artifact": OTHER_CODE, "state": "stopped"}, ("stop", "upgrade"), ["code"]),
        (application(parameters={"limit": 1, "out": None}), {}, ("upgrade",), ["parameters.limit", "parameters.out"]),
    ],
)
def test_steps_apply_only_the_differences(
    now: Application | None, fields: dict[str, Any], verbs: tuple[str, ...], changed: list[str] | None
) -> None:
    described = desired(**fields)
    found = steps(now, described, described.artifact or "")
    assert found.verbs == verbs
    assert changed is None or [change.path for change in found.changes] == changed


def configured(**settings: Any) -> dict[str, Any]:
    return ApplicationConfiguration(**settings).model_dump(mode="json")


def test_max_parallelism_is_unchanged_unless_given() -> None:
    now = application(configuration=configured(max_parallelism=64))
    assert steps(now, desired(), CODE).verbs == ()
    other = steps(now, desired(configuration={"max_parallelism": 128}), CODE)
    assert [change.path for change in other.changes] == ["configuration.max_parallelism"]
    too_many = desired(configuration={"parallelism": 100})
    with pytest.raises(OptionError, match="parallelism 100 is above max_parallelism 64"):
        steps(now, too_many, CODE)


def test_autoscaled_applications_keep_their_parallelism() -> None:
    scaling = {"autoscaling": {"least": 1, "greatest": 6}}
    now = application(configuration=configured(parallelism=5, **scaling))
    assert steps(now, desired(configuration={"parallelism": 2, **scaling}), CODE).verbs == ()
    narrower = steps(now, desired(configuration={"autoscaling": {"greatest": 3}}), CODE)
    assert {change.path: change.after for change in narrower.changes} == {
        "configuration.parallelism": 3,
        "configuration.autoscaling.greatest": 3,
    }
    off = steps(now, desired(configuration={"parallelism": 5}), CODE)
    assert [change.path for change in off.changes] == ["configuration.autoscaling"]


def test_settings_of_a_newer_version_are_not_dropped() -> None:
    now = application(configuration={**configured(), "future_setting": 1})
    with pytest.raises(OptionError, match="future_setting"):
        steps(now, desired(), CODE)


def test_the_schema_matches_the_documented_fields() -> None:
    """docs/how-to/apply.md lists each field in order; the schema refuses other fields."""
    page = (ROOT / "docs/how-to/apply.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert rows == list(DesiredApplication.model_fields)
    document = schema()
    assert document["additionalProperties"] is False and set(document["properties"]) == set(rows)
    assert document["$defs"]["Configuration"]["additionalProperties"] is False
