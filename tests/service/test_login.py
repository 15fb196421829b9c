"""``epochal login`` at a real identity provider on a loopback socket, and later commands at a control plane that
verifies its tokens."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.client.device_login import Invitation, Provider
from epochal.client.location import changed_contexts, contexts_file, locate, read_contexts, token_for
from epochal.errors import EpochalError, IssuerUnavailable, OptionError, Unauthenticated
from epochal.service.domain.settings import Settings
from tests.kit.identity_provider import CLIENT, IdentityProvider, identity_provider
from tests.service.conftest import serving

RUNNER = CliRunner()


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def url(
    settings: Settings,
    provider: IdentityProvider,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """URL of a control plane that accepts the provider's tokens; no user has logged in yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    monkeypatch.setenv("EPOCHAL_HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("EPOCHAL_URL", "EPOCHAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(settings.model_copy(update={"oidc": provider.settings()})):
        yield settings.url


def run(*words: str) -> str:
    result = RUNNER.invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def log_in(provider: IdentityProvider, url: str, *further: str) -> str:
    return run("login", "--issuer", provider.url, "--client-id", CLIENT, "--url", url, *further)


def test_login_is_used_by_all_commands(url: str, provider: IdentityProvider) -> None:
    provider.polls = ["authorization_pending", "authorization_pending"]
    output = log_in(provider, url)
    assert f"{provider.url}/enter" in output
    assert "ABCD-EFGH" in output
    assert provider.asked.count("/token") == 3
    assert json.loads(run("ps", "--json"))["items"] == []  # without --url, the current context supplies it
    with Client() as client:
        assert client.url == url
        assert client.applications.list() == []


def test_login_is_stored_readable_by_its_user_only(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url)
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_file().parent.stat().st_mode) == 0o700
    token = token_for(url)
    assert token is not None
    assert token not in run("context", "list", "--json") + run("context", "list")


def test_login_is_sent_to_no_other_control_plane(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url)
    assert locate(url).token is not None
    for other in ("http://127.0.0.1:1", url.replace("127.0.0.1", "localhost"), f"{url}0", "https://elsewhere.example"):
        assert locate(other).token is None


def test_expired_token_is_renewed_once_by_concurrent_callers(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url)
    first = token_for(url)
    with changed_contexts() as contexts:
        contexts.contexts[url].expires_at = time.time() - 1
    with ThreadPoolExecutor(4) as pool:
        renewed = set(pool.map(lambda _: token_for(url), range(4)))
    assert len(renewed) == 1
    assert renewed != {first}
    assert provider.asked.count("/token") == 2
    assert read_contexts().contexts[url].refresh_token in provider.refresh_tokens
    assert json.loads(run("ps", "--json"))["items"] == []


def test_revoked_login_ends_but_an_unavailable_issuer_does_not_end_it(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url)
    with changed_contexts() as contexts:
        contexts.contexts[url].expires_at = time.time() - 1
    provider.answers = False
    with pytest.raises(IssuerUnavailable):
        run("ps")
    provider.answers = True
    assert token_for(url)
    with changed_contexts() as contexts:
        contexts.contexts[url].expires_at = time.time() - 1
    provider.refresh_tokens.clear()
    with pytest.raises(Unauthenticated, match="`epochal login` again"):
        run("ps")


def test_logout_deletes_the_login_and_revokes_its_token(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url)
    assert json.loads(run("logout", "--json")) == {"context": url, "revoked": True}
    assert provider.refresh_tokens == set()
    assert token_for(url) is None
    with pytest.raises(EpochalError, match="no current context"):
        run("logout")


def test_contexts_of_several_control_planes_are_switched(url: str, provider: IdentityProvider) -> None:
    log_in(provider, url, "--name", "one")
    log_in(provider, "https://two.example", "--name", "two")
    assert locate().url == "https://two.example"
    run("context", "use", "one")
    assert locate().url == url
    listed = {context["name"]: context["current"] for context in json.loads(run("context", "list", "--json"))["items"]}
    assert listed == {"one": True, "two": False}
    with pytest.raises(EpochalError, match="no context 'three'"):
        run("context", "use", "three")


def test_context_selects_a_project(url: str, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(provider, url, "--name", "one")
    assert locate().project == "default"
    run("context", "use", "one", "--project", "pricing")
    assert locate().project == "pricing"
    with pytest.raises(EpochalError, match="pricing"):
        run("show", "orders")
    assert locate(project="ads").project == "ads"
    monkeypatch.setenv("EPOCHAL_PROJECT", "search")
    assert locate().project == "search"
    monkeypatch.delenv("EPOCHAL_PROJECT")
    run("context", "use", "one")
    assert locate().project == "pricing"
    with pytest.raises(EpochalError, match="No Good"):
        run("context", "use", "one", "--project", "No Good")
    assert locate().project == "pricing"


@pytest.mark.parametrize(
    ("poll", "why"), [("access_denied", "refused"), ("expired_token", "timed out"), ("server_error", "server_error")]
)
def test_failed_login_reports_its_cause(url: str, provider: IdentityProvider, poll: str, why: str) -> None:
    provider.polls = [poll]
    with pytest.raises(Unauthenticated, match=why):
        log_in(provider, url)
    assert read_contexts().contexts == {}


def test_slow_down_answers_lengthen_the_polling_interval(provider: IdentityProvider) -> None:
    provider.polls = ["slow_down", "authorization_pending", "slow_down"]
    pauses: list[float] = []
    asking = Provider(provider.url, CLIENT)
    asking.wait(Invitation("", "", "device", 1.0, 60.0), pauses.append)
    assert pauses == [1.0, 6.0, 6.0, 11.0]


@pytest.mark.parametrize("issuer", ["http://id.example", "id.example", "ftp://127.0.0.1"])
def test_login_requires_https(url: str, issuer: str) -> None:
    with pytest.raises(OptionError, match="https"):
        run("login", "--issuer", issuer, "--client-id", CLIENT, "--url", url)


def test_client_unknown_to_the_provider_is_refused(url: str, provider: IdentityProvider) -> None:
    with pytest.raises(OptionError, match="invalid_client"):
        run("login", "--issuer", provider.url, "--client-id", "another", "--url", url)


def test_unreadable_contexts_file_is_named(url: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text("[")
    with pytest.raises(OptionError, match=r"contexts\.json"):
        run("ps")
