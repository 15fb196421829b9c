"""Copies of applications in other projects share nothing with their source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.errors import InvalidInput, OptionError, QuotaExceeded
from epochal.faults import FaultPoint, injected
from epochal.service.catalog.models import Branch
from epochal.snapshots.layout import OF_THE_CATALOG
from epochal.wire.projects import project_of
from tests.kit.waiting import eventually
from tests.service.bundles import exported, files, finished, members, packed, value
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.projects import Project, project
from tests.service.served_programs import ServedProgram, plainly
from tests.service.test_bundles_refused import signed
from tests.service.test_collection import collected
from tests.service.test_programs import CODE, FIRST_CALLS, LATER_CALLS, check_state, control_plane

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def ads(plane: Plane) -> Iterator[Project]:
    made = project(plane, "ads")
    with made.client:
        yield made


@pytest.fixture
def pricing(plane: Plane) -> Iterator[Project]:
    made = project(plane, "pricing")
    with made.client:
        yield made


def with_state(plane: Plane, application: str, epochs: int = 3, packs: bool = False) -> StateDriver:
    driver = StateDriver(plane, application, tables=(DELAYS,), packs=packs)
    for number in range(1, epochs + 1):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0), route("SFO", f"A{number}", number, 2.0)]))
    return driver


def stopped(plane: Plane, driver: StateDriver) -> None:
    plane.post(f"/v1/applications/{driver.application}/stop")
    driver.driver.stop()


def bundle_of(by: Project, application: str, **request: Any) -> bytes:
    operation = by.post(f"applications/{application}/export", 202, **request)["id"]
    by.wait(operation)
    return by.client.get(by.url(f"applications/{application}/exports/{operation}")).content


def request_import(by: Project, bundle: bytes, name: str, expect: int = 202, **request: Any) -> dict[str, Any]:
    body = {"sha256": hashlib.sha256(bundle).hexdigest(), "bytes": len(bundle)}
    upload = by.post("imports", 201, **body)
    if upload["received"] < len(bundle):
        answer = by.client.put(by.url(f"imports/{upload['id']}/content"), params={"offset": 0}, content=bundle)
        assert answer.status_code == 200, answer.text
    parameters = {"out": f"/of-{by.name}-{name}"}
    request = {"name": name, "parameters": parameters, **request}
    return dict(by.post(f"imports/{upload['id']}/application", expect, **request))


def import_into(by: Project, bundle: bytes, name: str, **request: Any) -> dict[str, Any]:
    operation = request_import(by, bundle, name, **request)["id"]
    by.wait(operation)
    return dict(by.get(f"operations/{operation}"))


def files_of(plane: Plane, project: str) -> set[str]:
    """The files of all branches of a project."""
    return {path for path in files(plane) if project_of(path.partition("/")[0]) == project}


def of_default(plane: Plane) -> Project:
    return Project(plane, "default", plane.client)


def check_alone(by: Project, name: str) -> None:
    """Check that answers about the copy name branches of its own project only, apart from its origin."""
    lineage = by.get(f"applications/{name}/lineage")
    answers_found = [by.get(f"applications/{name}/state/delays/history", key="JFK,LAX"), lineage["edges"]]
    answers_found += [{**node, "changes": [change["kind"] for change in node["changes"]]} for node in lineage["nodes"]]
    answers_found.append(by.get(f"applications/{name}/state/delays/blame", key="JFK,LAX"))
    answers_found.append(by.get(f"applications/{name}/snapshots/head"))
    named: list[str] = []

    def collect(at: Any, key: str = "") -> None:
        if isinstance(at, dict):
            for member, inner in at.items():
                collect(inner, member)
        elif isinstance(at, list):
            for inner in at:
                collect(inner, key)
        elif key in ("branch", "path") and isinstance(at, str):
            named.append(project_of(at.partition("/")[0]))

    collect(answers_found)
    assert named and set(named) == {by.name}
    assert {node["application"] for node in lineage["nodes"]} <= {name, "flights"}


def test_a_copy_outlives_its_deleted_source(plane: Plane, ads: Project) -> None:
    plane.application("flights")
    source = with_state(plane, "flights")
    done = import_into(ads, exported(plane, message="for the campaign"), "copy")
    assert value(plane, "ads.copy", "JFK", "LAX") == {"flights": 3, "worst": 1.0}
    assert value(plane, "ads.copy", "JFK", "LAX", epoch=1) == {"flights": 1, "worst": 1.0}
    assert (done["result"]["parent"]["epoch"], project_of(done["result"]["parent"]["branch"])) == (3, "ads")
    assert len(files_of(plane, "ads")) == len(files_of(plane, "default") - set(OF_THE_CATALOG)) > 0
    check_alone(ads, "copy")
    shown = ads.get("applications/copy")
    origin = shown["imported_from"]
    assert (origin["project"], origin["application"], origin["epoch"]) == ("default", "flights", 3)
    assert (origin["message"], shown["parent"]) == ("for the campaign", None)
    assert {node["application"] for node in plane.get("/v1/applications/flights/lineage")["nodes"]} == {"flights"}
    assert len(plane.get("/v1/applications/flights/lineage")["edges"]) == 2, (
        "the lineage of the source excludes the copy"
    )

    stopped(plane, source)
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    collected(plane, grace_seconds=0)
    assert {path for path in files_of(plane, "default") if path.partition("/")[0] not in OF_THE_CATALOG} == set()
    ads.post("applications/copy/start", 202)
    driver = StateDriver(plane, "ads.copy", tables=(DELAYS,))
    assert driver.driver.point.application == "ads.copy"
    assert driver.epoch((DELAYS, [route("JFK", "LAX", 40, 9.0)])) == 4
    assert value(plane, "ads.copy", "JFK", "LAX", min_epoch=4) == {"flights": 40, "worst": 9.0}
    assert value(plane, "ads.copy", "SFO", "A2") == {"flights": 2, "worst": 2.0}
    history = ads.get("applications/copy/state/delays/history", key="JFK,LAX")["items"]
    assert [item["epoch"] for item in history] == [4, 3, 2, 1]
    check_alone(ads, "copy")
    (began,) = [
        change
        for node in ads.get("applications/copy/lineage")["nodes"]
        for change in node["changes"]
        if change["kind"] == "import"
    ]
    assert began["detail"]["origin"]["application"] == "flights"
    verified = finished(plane, plane.post("/v1/verifications"))["result"]
    assert verified["sound"] and verified["unreferenced_files"] == []


def test_a_copy_back_into_the_source_project_has_its_own_branch(plane: Plane, ads: Project) -> None:
    plane.application("flights")
    source = with_state(plane, "flights", epochs=2)
    import_into(ads, exported(plane), "outbound")
    home = import_into(of_default(plane), bundle_of(ads, "outbound"), "back")["result"]["parent"]["branch"]
    assert project_of(home) == "default" and home != source.driver.point.branch
    assert value(plane, "back", "JFK", "LAX") == {"flights": 2, "worst": 1.0}
    check_alone(of_default(plane), "back")
    source.epoch((DELAYS, [route("JFK", "LAX", 50, 1.0)]))
    assert value(plane, "flights", "JFK", "LAX", min_epoch=3) == {"flights": 50, "worst": 1.0}
    assert value(plane, "back", "JFK", "LAX") == {"flights": 2, "worst": 1.0}
    again = bundle_of(of_default(plane), "back")
    assert import_into(of_default(plane), again, "same")["result"]["parent"]["branch"] == home, (
        "a copy within a project has its branch"
    )


def test_repeated_and_incremental_bundles_extend_a_copy(plane: Plane, ads: Project, pricing: Project) -> None:
    pricing.application("flights")
    source = with_state(plane, "pricing.flights", packs=True)
    first = bundle_of(pricing, "flights")
    source.epoch((DELAYS, [route("JFK", "LAX", 50, 5.0)]))
    second = bundle_of(pricing, "flights", since=3)
    source.epoch((DELAYS, [route("JFK", "LAX", 60, 6.0)]))
    third = bundle_of(pricing, "flights", since=4)

    refused = request_import(ads, second, "early", 409)
    assert "is incremental" in refused["detail"]
    original = import_into(ads, first, "copy")["result"]
    copied = files_of(plane, "ads")
    again = import_into(ads, first, "again")["result"]
    assert (again["parent"], again["files"], files_of(plane, "ads")) == (original["parent"], 0, copied)
    assert "is incremental" in request_import(ads, third, "early", 409)["detail"], (
        "the increment that precedes it is missing"
    )
    for number, bundle in ((4, second), (5, third)):
        done = import_into(ads, bundle, f"at-{number}")["result"]
        assert done["parent"] == {"branch": original["parent"]["branch"], "epoch": number}
    assert value(plane, "ads.at-5", "JFK", "LAX") == {"flights": 60, "worst": 6.0}
    other = import_into(ads, bundle_of(pricing, "flights", epoch=4), "other")["result"]["parent"]["branch"]
    assert other != original["parent"]["branch"], "a copy of another snapshot has its own branch"
    onto = import_into(ads, third, "onto")["result"]["parent"]
    assert onto["epoch"] == 5 and onto["branch"] in (other, original["parent"]["branch"])
    assert value(plane, "ads.onto", "JFK", "LAX") == {"flights": 60, "worst": 6.0}
    assert value(plane, "ads.at-5", "JFK", "LAX", epoch=2) == {"flights": 2, "worst": 1.0}
    assert value(plane, "ads.copy", "JFK", "LAX") == {"flights": 3, "worst": 1.0}
    assert ads.get("applications/at-5")["imported_from"]["project"] == "pricing"
    check_alone(ads, "at-5")


def test_an_upload_is_not_resumed_once_its_import_has_finished(plane: Plane, ads: Project, pricing: Project) -> None:
    """The import removes the upload: a client that resumed it would lose the bundle."""
    pricing.application("flights")
    with_state(plane, "pricing.flights")
    bundle = bundle_of(pricing, "flights")
    received: list[int] = []

    def begin_again(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "import.registered":
            upload = ads.post("imports", 201, sha256=hashlib.sha256(bundle).hexdigest(), bytes=len(bundle))
            received.append(upload["received"])

    with injected(begin_again):
        import_into(ads, bundle, "copy")
        eventually(lambda: received == [0])


def test_a_bundle_that_claims_branches_of_another_project_is_a_copy(
    plane: Plane, ads: Project, pricing: Project
) -> None:
    """Also if it claims to continue a snapshot that only the other project has."""
    pricing.application("flights")
    victim = with_state(plane, "pricing.flights")
    before, lineage = files_of(plane, "pricing"), pricing.get("applications/flights/lineage")
    increment = members(bundle_of(pricing, "flights", since=2))
    assert "is incremental" in request_import(ads, packed(increment), "stolen", 409)["detail"]
    forged = json.loads(increment[0][1])["since"] | {"sha256": "0" * 64}
    assert "is incremental" in request_import(ads, packed(signed(increment, since=forged)), "stolen", 409)["detail"]
    whole = members(bundle_of(pricing, "flights"))
    header = json.loads(whole[0][1])
    claimed = packed(signed(whole, branches=[{**branch, "created_by": "mallory"} for branch in header["branches"]]))
    done = import_into(ads, claimed, "mine")["result"]
    assert project_of(done["parent"]["branch"]) == "ads" and files_of(plane, "pricing") == before
    check_alone(ads, "mine")
    victim.epoch((DELAYS, [route("JFK", "LAX", 9, 1.0)]))
    assert pricing.get("applications/flights/lineage")["nodes"][-3:] == lineage["nodes"][-3:]
    assert [item["name"] for item in ads.get("applications")["items"]] == ["mine"]
    with plane.control.database.reading() as session:
        ids = session.scalars(select(Branch.id)).all()
    assert len([id for id in ids if project_of(id) == "pricing"]) == 1


@pytest.mark.parametrize("point", ["import.renamed", "import.member-stored", "import.stored"])
def test_a_refused_copy_leaves_no_files(plane: Plane, ads: Project, point: str) -> None:
    """Killed at the same points: tests/service/fault/test_rollback_and_move_kills.py."""
    plane.application("flights")
    with_state(plane, "flights", epochs=1, packs=True)
    bundle = exported(plane)

    def fail(at: FaultPoint, _epoch: int | None) -> None:
        if at.name == point:
            raise InvalidInput("It is refused.")

    with injected(fail):
        operation = request_import(ads, bundle, "copy")["id"]
        eventually(lambda: ads.get(f"operations/{operation}")["state"] != "running")
    done = ads.get(f"operations/{operation}")
    assert (done["state"], done["error"]["detail"]) == ("failed", "It is refused.")
    assert files_of(plane, "ads") == set()
    import_into(ads, bundle, "copy")
    assert value(plane, "ads.copy", "JFK", "LAX") == {"flights": 1, "worst": 1.0}


def test_a_copied_program_continues_from_its_state(tmp_path: Path) -> None:
    """A real engine reads the snapshot under its new name and writes an epoch on it."""
    with control_plane(tmp_path / "one") as plane, project(plane, "ads").client as client:
        ads, accounts = Project(plane, "ads", client), ServedProgram(plane, tmp_path)
        accounts.create(CODE)
        with accounts.running():
            accounts.call(*FIRST_CALLS)
        import_into(ads, exported(plane, "accounts"), "moved", parameters={})
        copy = ServedProgram(plane, tmp_path, "ads.moved")
        with copy.running():
            check_state(copy, FIRST_CALLS)
            again = [*FIRST_CALLS, *LATER_CALLS]
            assert (
                copy.call(*again, request_ids="first-")
                == plainly(copy.file, [*FIRST_CALLS, *again])[len(FIRST_CALLS) :]
            )
        assert finished(plane, plane.post("/v1/verifications"))["result"]["sound"]


def client_of(plane: Plane, project: str = "default", token: str | None = None) -> Client:
    return Client(plane.settings.url, token or plane.admin_token, project=project)


def test_the_client_forks_into_another_project(plane: Plane, pricing: Project, ads: Project, tmp_path: Path) -> None:
    pricing.application("flights")
    with_state(plane, "pricing.flights")
    before = set(Path("/tmp").glob("epochal-fork-*"))
    with client_of(plane, "pricing") as client:
        copy = client.applications.fork(
            "flights", "copy", into="ads", epoch=2, parameters={"out": "/ads"}, start=False, message="why"
        )
        assert (copy.project, copy.name, copy.state, copy.head and copy.head.epoch) == ("ads", "copy", "created", 2)
        assert copy.imported_from is not None
        assert (copy.imported_from.project, copy.imported_from.message) == ("pricing", "why")
        with pytest.raises(InvalidInput, match="would write to files:/data/pricing/flights"):
            client.applications.fork("flights", "second", into="ads")
        for wrong in ({"artifact": "0" * 64}, {"into": "No"}):
            with pytest.raises(OptionError):
                client.applications.fork("flights", "second", **{"into": "ads", **wrong})  # type: ignore[arg-type]
    assert ads.get("imports")["items"] == [], "refused imports are deleted"
    with client_of(plane) as client:  # the full name is valid from another project
        again = client.applications.fork("pricing.flights", "again", into="ads", shadow=True, start=False)
        assert (again.project, again.shadow) == ("ads", True)
        plane.client.put("/v1/projects/ads", json={"quotas": {"applications": 2}})
        with pytest.raises(QuotaExceeded):
            client.applications.fork("pricing.flights", "third", into="ads", shadow=True, start=False)
    assert set(Path("/tmp").glob("epochal-fork-*")) == before


def test_the_command_forks_into_another_project(plane: Plane, ads: Project) -> None:
    plane.application("flights")
    with_state(plane, "flights")
    environment = {**plane.environment, "COLUMNS": "200"}

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments], env=environment)

    made = run("fork", "flights", "copy", "--into", "ads", "-p", "out=/ads", "--no-start")
    assert made.exit_code == 0, made.output
    assert (
        "copy is created in project ads, as a fork of flights at epoch 3; start it with `epochal start copy`"
        in made.stdout
    )
    shown = run("--project", "ads", "show", "copy")
    assert "imported from  flights @ epoch 3 (project default)" in shown.stdout
    assert "imported from flights @ epoch 3 (project default)" in run("--project", "ads", "ps").stdout
    ads.post("applications/copy/start", 202)
    driver = StateDriver(plane, "ads.copy", tables=(DELAYS,))
    driver.epoch((DELAYS, [route("JFK", "LAX", 40, 9.0)]))
    assert "imported from flights @ epoch 3 (project default)" in run("--project", "ads", "lineage", "copy").stdout
    for option in (["--at", "2030-01-01T00:00:00+00:00"], ["--file", "code.py"]):
        refused = run("fork", "flights", "second", "--into", "ads", *option)
        assert refused.exit_code == 2 and option[0] in refused.output
