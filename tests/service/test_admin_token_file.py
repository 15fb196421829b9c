"""Admin tokens: each control plane generates one, or all use the token in a given file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from epochal.errors import EnvironmentProblem
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Token
from epochal.service.catalog.tokens import TokenRepository, ensure_admin_token, seed_given_token
from epochal.service.commands.doctor import examine
from epochal.service.domain.checks import Verdict
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.secrets import UserToken
from epochal.service.domain.settings import Settings
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.conftest import http_client, serving


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    else:
        url = str(request.getfixturevalue("postgresql_catalog_url"))
    with closing(Database(url)) as database:
        yield database


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(UserToken.make(new_id()).text + "\n")
    file.chmod(0o440)
    return file


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return sorted(session.scalars(select(Token.name)))


def test_control_planes_that_start_concurrently_generate_a_token_each(database: Database, tmp_path: Path) -> None:
    files = [tmp_path / str(number) / "admin.token" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda file: ensure_admin_token(database, file), files))
    assert len({file.read_text() for file in files}) == len(names(database)) == 4
    assert names(database)[0] == "admin"


def test_control_planes_that_start_concurrently_share_a_given_token(database: Database, secret: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: seed_given_token(database, secret), range(4)))
    assert names(database) == ["admin"]


def test_a_given_token_replaces_the_generated_one(settings: Settings, secret: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{new_sqlite_catalog(tmp_path / 'shared.sqlite').partition('///')[2]}"
    shared = {"database": database, "store": str(tmp_path / "store"), "given_admin_token": secret}
    for name in ("first", "second"):
        one = settings.model_copy(update=shared | {"data": tmp_path / name})
        with serving(one), http_client(one, secret.read_text().strip()) as client:
            (token,) = client.get("/v1/tokens").json()["items"]
            assert (token["name"], token["roles"]) == ("admin", {"default": "admin"})
            assert one.token_file == secret and not one.admin_token_file.exists()


def test_a_given_token_can_be_replaced_and_stays_revoked(
    database: Database, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed_given_token(database, secret)
    old = secret.read_text()
    secret.chmod(0o600)
    secret.write_text(UserToken.make(new_id()).text)
    seed_given_token(database, secret)
    assert len(names(database)) == 2
    with database.writing() as session:
        repository = TokenRepository(session)
        repository.revoke(repository.get(old.split("_")[1], "default"), "me")
    secret.write_text(old)
    with caplog.at_level(logging.WARNING):
        seed_given_token(database, secret)
    assert f"the token in {secret} was revoked and stays revoked; for a new one, put another one there" in caplog.text
    assert len(names(database)) == 1


def test_an_unusable_given_token_is_refused(database: Database, secret: Path, tmp_path: Path) -> None:
    seed_given_token(database, secret)
    id = secret.read_text().split("_")[1]
    secret.chmod(0o644)
    with pytest.raises(EnvironmentProblem, match=r"is readable by every user; .*defaultMode: 0440"):
        seed_given_token(database, secret)
    secret.chmod(0o600)
    for content, message in (("admin", "does not contain a token: ept_"), (UserToken.make(id).text, "another secret")):
        secret.write_text(content)
        with pytest.raises(EnvironmentProblem, match=message):
            seed_given_token(database, secret)
    with pytest.raises(EnvironmentProblem, match="EPOCHAL_ADMIN_TOKEN_FILE names: No such file"):
        seed_given_token(database, tmp_path / "missing")


def test_doctor_checks_a_given_token(secret: Path, tmp_path: Path) -> None:
    for file, verdict in ((secret, Verdict.OK), (tmp_path / "missing", Verdict.FAILED)):
        settings = Settings(data=tmp_path / "data", given_admin_token=file)
        (finding,) = [finding for finding in examine(settings) if finding.check == "admin token"]
        assert finding.verdict is verdict and str(file) in finding.said
