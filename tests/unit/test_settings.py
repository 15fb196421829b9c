"""Settings from a file, the environment and options; where each value comes from; the reference table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epochal.cli.config import app, redacted
from epochal.cli.main import app as epochal
from epochal.cli.settings import Arguments, Source, known_settings
from epochal.errors import OptionError
from epochal.service.domain.setting_sections import Kept, Limits
from epochal.service.domain.settings import Settings
from tools import settings_table


def written(folder: Path, text: str) -> Path:
    path = folder / "epochal.toml"
    path.write_text(text)
    return path


def load(file: Path | None = None, environment: dict[str, str] | None = None, **options: Any) -> Settings:
    return Arguments(options, file).load(environment or {}).settings


def test_options_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'port = 1\nhost = "file"\nstore = "file"\n[kept]\nevents = 1\nepochs = 1\n')
    environment = {"EPOCHAL_PORT": "2", "EPOCHAL_HOST": "environment", "EPOCHAL_KEPT_EVENTS": "2"}
    loaded = Arguments({"port": 3}, file).load(environment)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.store) == (3, "environment", "file")
    assert settings.kept == Kept(events=2, epochs=1)
    assert loaded.sources == {
        "port": Source.OPTION,
        "host": Source.ENVIRONMENT,
        "store": Source.FILE,
        "kept.events": Source.ENVIRONMENT,
        "kept.epochs": Source.FILE,
    }


def test_settings_without_sources_are_the_defaults() -> None:
    assert load() == Settings()


def test_every_setting_can_come_from_the_environment() -> None:
    variables = [known.variable for known in known_settings().values()]
    assert len(set(variables)) == len(variables)
    assert {"EPOCHAL_HOME", "EPOCHAL_DATABASE_URL", "EPOCHAL_INTERNAL_TLS_KEY"} < set(variables)
    environment = {"EPOCHAL_LIMITS_BODY_BYTES": "77", "EPOCHAL_WEBHOOKS_LOCAL": "1", "EPOCHAL_STORE": ""}
    settings = load(environment=environment)
    assert settings.limits == Limits(body_bytes=77) and settings.webhooks_local and settings.store is None


def test_a_service_link_of_kubernetes_is_not_a_port() -> None:
    assert load(environment={"EPOCHAL_PORT": "tcp://10.0.0.1:8765"}).port == Settings().port


def test_the_settings_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, "port = 7\n")
    assert load(environment={"EPOCHAL_CONFIG": str(file)}).port == 7


def test_object_settings_are_json_files_or_tables(tmp_path: Path) -> None:
    content = {"image": "epochal:1"}
    path = tmp_path / "kubernetes.json"
    path.write_text(json.dumps(content))
    table = written(tmp_path, '[kubernetes]\nimage = "epochal:1"\n')
    by_path = load(environment={"EPOCHAL_KUBERNETES_FILE": str(path)})
    assert by_path == load(table) and by_path.launcher == "kubernetes"
    assert by_path.kubernetes is not None and by_path.kubernetes.image == "epochal:1"


def test_proxies_are_a_list_or_comma_separated_text(tmp_path: Path) -> None:
    file = written(tmp_path, 'trusted_proxies = ["10.0.0.7", "10.42.0.0/16"]\n')
    assert load(file).trusted_proxies == load(trusted_proxies="10.0.0.7,10.42.0.0/16").trusted_proxies != ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pport = 1", r"epochal.toml: unknown setting 'pport'. Did you mean 'port'\?"),
        ("[kept]\nevent = 1", r"unknown setting 'kept.event'. Did you mean 'kept.events'\?"),
        ("[limit]\nbody_bytes = 1", r"unknown setting 'limit'. Did you mean 'limits'\?"),
        ("kept = 3", "unknown setting 'kept'"),
        ("port = 'x'", "port in .*epochal.toml: .*integer"),
        ("port", "not valid TOML"),
        ("[limits]\nbodies_bytes = 1", "limits: bodies_bytes must be at least"),
    ],
)
def test_a_wrong_settings_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load(written(tmp_path, text))


def test_a_missing_settings_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere.toml cannot be read: No such file"):
        load(tmp_path / "nowhere.toml")


def test_an_invalid_value_is_refused_with_its_source() -> None:
    with pytest.raises(OptionError, match=r"^EPOCHAL_WARM_DRIVERS: .*16"):
        load(environment={"EPOCHAL_WARM_DRIVERS": "99"})
    with pytest.raises(OptionError, match="--tls-certificate and --tls-key belong together"):
        load(environment={"EPOCHAL_TLS_KEY": "key.pem"})


def test_config_show_prints_every_setting_with_its_source(tmp_path: Path) -> None:
    file = written(tmp_path, 'database_url = "postgresql://me:hidden@db/epochal"\n')
    arguments = ["--config", str(file), "--port", "9", "--no-authentication", "--json"]
    result = CliRunner().invoke(app, arguments, env={"EPOCHAL_LOG_DAYS": "3"})
    assert result.exit_code == 0 and "hidden" not in result.output
    rows = {row["name"]: row for row in json.loads(result.output)["items"]}
    assert set(rows) == set(known_settings())
    expected = {
        "database_url": ("postgresql://me:***@db/epochal", "file"),
        "log_days": ("3.0", "environment"),
        "port": ("9", "option"),
        "authentication": ("false", "option"),
        "log_files": ("3", "default"),
    }
    assert {name: (rows[name]["value"], rows[name]["source"]) for name in expected} == expected
    assert rows["port"]["variable"] == "EPOCHAL_PORT" and rows["port"]["option"] == "--port"


def test_config_show_is_a_command() -> None:
    result = CliRunner().invoke(epochal, ["config", "show", "--port", "9"])
    assert result.exit_code == 0 and "kept.events" in result.output


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hidden@db:1/x", "postgresql://me:***@db:1/x"),
        ("postgresql://me@db/x?password=hidden&sslmode=on", "postgresql://me@db/x?password=***&sslmode=on"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("/shared/epochal", "/shared/epochal"),
    ],
)
def test_passwords_in_urls_are_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_the_reference_table_is_current() -> None:
    """``python -m tools.settings_table`` updates it."""
    text = settings_table.PAGE.read_text()
    assert text == settings_table.page(text)
    assert all(known.description for known in known_settings().values())
