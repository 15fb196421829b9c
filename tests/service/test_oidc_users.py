"""Users with tokens of an identity provider. A real provider on a loopback socket signs them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from sqlalchemy import select

from epochal.errors import OptionError, Unauthenticated
from epochal.service.catalog.models import AuditEntry
from epochal.service.domain.identity import person_of, read_oidc_settings
from epochal.service.domain.settings import Settings
from epochal.service.runtime import signed_tokens
from epochal.service.runtime.authenticator import Authenticator
from epochal.wire.tokens import Role
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.service.conftest import Plane, StandInSupervisor, http_client, serving


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def plane(settings: Settings, provider: IdentityProvider) -> Iterator[Plane]:
    settings = settings.model_copy(update={"oidc": provider.settings()})
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


def get(plane: Plane, token: str, path: str = "/v1/applications") -> httpx.Response:
    return plane.client.get(path, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_user_has_the_roles_of_their_groups(plane: Plane, provider: IdentityProvider, algorithm: str) -> None:
    provider.add("own", algorithm)
    assert get(plane, provider.token("own")).status_code == 200
    refused = get(plane, provider.token("own"), "/v1/tokens")
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("ada (127.0.0.1) has the role viewer in the project 'default'")
    assert "token" not in refused.json()["detail"]
    assert get(plane, provider.token("own", groups=["readers", "owners", "unmapped"]), "/v1/tokens").status_code == 200


@pytest.mark.parametrize("groups", [None, [], ["unmapped"], "unmapped"])
def test_user_without_a_role_is_named_and_refused(plane: Plane, provider: IdentityProvider, groups: object) -> None:
    answer = get(plane, provider.token(groups=groups))
    assert answer.status_code == 403
    assert "ada (127.0.0.1) has no role in the project 'default'" in answer.json()["detail"]


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 1e400},
        {"nbf": 1 << 40},
        {"iat": 1 << 40},
        {"iat": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": {"epochal": 1}},
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
        {"sub": "\ud800"},
        {"sub": "x" * 256},
        {"groups": {"owners": True}},
        {"groups": [["owners"]]},
        {"groups": 7},
        {"groups": True},
    ],
    ids=repr,
)
def test_foreign_expired_or_malformed_token_is_refused(
    plane: Plane, provider: IdentityProvider, claims: dict[str, Any]
) -> None:
    answer = get(plane, provider.token(**claims))
    assert answer.status_code == 401
    assert answer.json()["type"] == "urn:epochal:problem:unauthenticated"


def test_tokens_signed_with_a_public_key_or_unsigned_are_refused(plane: Plane, provider: IdentityProvider) -> None:
    """Forged by hand, since the library refuses to create such tokens."""
    provider.add("own", "RS256")
    assert get(plane, provider.token("own")).status_code == 200
    public = provider.keys["own"][1].public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    secrets = [
        public.public_bytes(encoding, form) for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER)
    ]
    claims = part(json.dumps(provider.claims(groups=["owners"])).encode())
    for algorithm in ("HS256", "none", "None", "RS256"):
        signed = f"{part(json.dumps({'alg': algorithm, 'kid': 'own'}).encode())}.{claims}"
        signatures = ["", *(part(hmac.digest(secret, signed.encode(), hashlib.sha256)) for secret in secrets)]
        for signature in signatures:
            assert get(plane, f"{signed}.{signature}").status_code == 401


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_token_signed_by_another_provider_is_refused(plane: Plane, provider: IdentityProvider) -> None:
    with identity_provider() as other:
        stolen = other.token(iss=provider.url)
    assert get(plane, stolen).status_code == 401
    other.add("unknown")
    answer = get(plane, other.token("unknown", iss=provider.url))
    assert answer.status_code == 401
    assert "does not publish" in answer.json()["detail"]


def test_keys_are_rotated_and_withdrawn(
    settings: Settings, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_tokens, "AGAIN_SECONDS", 0.0)
    settings = settings.model_copy(update={"oidc": provider.settings()})
    with serving(settings) as (_, token), http_client(settings, token) as client:
        plane = Plane(_, client, settings, StandInSupervisor(), [])
        assert get(plane, provider.token()).status_code == 200
        provider.add("second", "RS256")
        assert get(plane, provider.token("second")).status_code == 200
        provider.published.remove("first")
        monkeypatch.setattr(signed_tokens, "KEPT_SECONDS", 0.0)
        assert get(plane, provider.token(sub="another")).status_code == 401
        assert get(plane, provider.token("second", sub="another")).status_code == 200


def test_unavailable_provider_is_not_reported_as_an_invalid_token(plane: Plane, provider: IdentityProvider) -> None:
    provider.answers = False
    for _ in range(5):
        answer = get(plane, provider.token())
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "10"
        assert answer.json()["type"] == "urn:epochal:problem:issuer-unavailable"
        assert provider.url in answer.json()["detail"]
    assert len(provider.asked) == 1
    assert (
        plane.client.get("/v1/tokens").status_code == 200
    )  # tokens of the control plane itself do not depend on the provider


def test_cached_keys_verify_tokens_while_the_provider_is_unavailable(plane: Plane, provider: IdentityProvider) -> None:
    assert get(plane, provider.token()).status_code == 200
    provider.answers = False
    assert get(plane, provider.token(sub="another")).status_code == 200


def test_fast_path_refuses_an_expired_token(plane: Plane, provider: IdentityProvider) -> None:
    authenticator = Authenticator(plane.control.database, oidc=provider.settings())
    # The expired token is within the leeway for verification, but must not be cached.
    living, dying = provider.token(), provider.token(exp=time.time() - 1)

    async def known() -> tuple[bool, bool, bool]:
        header = f"Bearer {living}".encode()
        before = authenticator.may_read(header, "default")
        await authenticator.user(header.decode())
        with pytest.raises(Unauthenticated):
            await authenticator.user(f"Bearer {dying}")
        return (
            before,
            authenticator.may_read(header, "default"),
            authenticator.may_read(f"Bearer {dying}".encode(), "default"),
        )

    assert asyncio.run(known()) == (False, True, False)


def test_audit_log_names_the_user_and_the_provider(plane: Plane, provider: IdentityProvider) -> None:
    bearer = {"Authorization": f"Bearer {provider.token(groups=['owners'])}", "Idempotency-Key": "one"}
    for _ in range(2):
        made = plane.client.post("/v1/tokens", json={"name": "made", "role": "viewer"}, headers=bearer)
        assert made.status_code == 201
    assert made.headers["idempotency-replayed"] == "true"
    with plane.control.database.reading() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.target == "/v1/tokens")).all()
    assert [entry.token for entry in entries] == ["ada (127.0.0.1)"]
    assert entries[0].token_id == person_of(provider.claims(), provider.settings()).id


def test_discovery_document_of_another_issuer_is_refused(settings: Settings) -> None:
    with identity_provider() as provider:
        other = provider.url.replace("127.0.0.1", "localhost")
        settings = settings.model_copy(update={"oidc": provider.settings(issuer=other)})
        with serving(settings) as (control, token), http_client(settings, token) as client:
            answer = get(Plane(control, client, settings, StandInSupervisor(), []), provider.token(iss=other))
    assert answer.status_code == 503
    assert "another issuer" in answer.json()["detail"]


def test_users_are_distinguished_by_subject_and_issuer(provider: IdentityProvider) -> None:
    settings = provider.settings(name_claim="email", name="company")
    first = person_of(provider.claims(email="ada@example.org"), settings)
    second = person_of(provider.claims(email="ada@example.org", sub="eve"), settings)
    of_other_issuer = person_of(provider.claims(email="ada@example.org"), provider.settings(issuer="https://b.example"))
    assert first.name == second.name == "ada@example.org (company)"
    assert len({first.id, second.id, of_other_issuer.id}) == 3
    assert all(len(person.id) <= 32 for person in (first, second, of_other_issuer))
    long = [person_of(provider.claims(sub="x" * 200 + end), provider.settings()) for end in "ab"]
    assert max(len(person.name) for person in long) <= 100
    assert long[0].name != long[1].name


def test_highest_role_of_several_groups_applies_in_each_project(provider: IdentityProvider) -> None:
    for groups in (["readers", "builders"], ["builders", "readers"]):
        person = person_of(provider.claims(groups=groups), provider.settings())
        assert person.roles == {"default": Role.AUTHOR, "other": Role.VIEWER}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"issuer": "http://id.example"}, "issuer"),
        ({"issuer": "id.example"}, "issuer"),
        ({"keys": "http://id.example/keys"}, "keys"),
        ({"audience": ""}, "audience"),
        ({"roles": {"a": "admin"}}, r"roles\.a"),
        ({"roles": {"a": {"default": "root"}}}, r"roles\.a\.default"),
        ({"audiences": ["a"]}, "audiences"),
        ({"issuer": f"https://{'x' * 60}.example"}, "long"),
    ],
)
def test_invalid_settings_file_is_refused_with_the_name_of_the_field(
    tmp_path: Path, changed: dict[str, Any], field: str
) -> None:
    file = tmp_path / "oidc.json"
    configuration = {"issuer": "https://id.example", "audience": "epochal", "roles": {}}
    file.write_text(json.dumps(configuration))
    found = read_oidc_settings(file)
    assert found.provider == "id.example"
    # The process of the internal API gets them as JSON.
    assert type(found).model_validate_json(found.model_dump_json()) == found
    file.write_text(json.dumps({**configuration, **changed}))
    with pytest.raises(OptionError, match=field):
        read_oidc_settings(file)
