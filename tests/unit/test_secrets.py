"""Secrets stay references until a client is created, and are masked in error texts of libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal import secret
from epochal.errors import OptionError
from epochal.secrets import redacted, revealed, without_secrets


def test_a_secret_shows_its_reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOP", "hunter2")
    options = {"user": "ann", "password": secret("env:TOP")}
    assert revealed(options) == {"user": "ann", "password": "hunter2"}
    assert redacted(options) == {"user": "ann", "password": "secret(env:TOP)"}
    assert "hunter2" not in f"{options!r} {options['password']}"
    assert without_secrets("login of ann with hunter2 failed", options) == "login of ann with *** failed"


def test_a_secret_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p w\n")
    assert secret(f"file:{tmp_path}/password").reveal() == "p w"
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        secret(f"file:{tmp_path}/none").reveal()


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(OptionError, match="environment variable NOT_THERE_AT_ALL is not set"):
        secret("env:NOT_THERE_AT_ALL").reveal()


@pytest.mark.parametrize("text", ["hunter2", "", "env:", "vault:x"])
def test_a_literal_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(OptionError, match="env:NAME or file:") as refused:
        secret(text)
    assert "hunter2" not in str(refused.value)
