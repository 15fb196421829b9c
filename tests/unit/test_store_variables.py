"""Variables of object stores: which processes receive them, and which of them are secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epochal.secrets import redact
from epochal.store_variables import (
    SECRET_ENDINGS,
    executor_variables,
    is_object_store,
    is_secret_variable,
    object_store_variables,
    reference_in,
    references_in,
    secret_values,
    spark_redaction,
    variables_for_store,
)

ROOT = Path(__file__).parents[2]
AWS = {
    "AWS_ACCESS_KEY_ID": "AKIA-of-a-test",
    "AWS_SECRET_ACCESS_KEY": "pl4nted-key",
    "AWS_SESSION_TOKEN": "pl4nted-session",
    "AWS_ENDPOINT_URL": "https://s3.example",
    "AWS_PROFILE": "streams",
    "AWS_ROLE_ARN": "arn:aws:iam::1:role/streams",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
}
GOOGLE = {"GOOGLE_APPLICATION_CREDENTIALS": "/keys/streams.json", "CLOUDSDK_CONFIG": "/home/ann/gcloud"}
AZURE = {
    "AZURE_STORAGE_ACCOUNT_NAME": "streams",
    "AZURE_STORAGE_ACCOUNT_KEY": "pl4nted-account",
    "AZURE_FEDERATED_TOKEN_FILE": "/var/run/secrets/azure/tokens/azure-identity-token",
}
CONNECTION = {"HTTPS_PROXY": "http://ann:pl4nted-proxy@proxy:3128", "no_proxy": "127.0.0.1", "SSL_CERT_FILE": "/ca.pem"}
OTHER = {"PATH": "/bin", "EPOCHAL_DATABASE_URL": "postgresql://a:b@c/d", "AWSOME": "x", "CLOUDSDK_CONFIGURED": "x"}
ENVIRONMENT = AWS | GOOGLE | AZURE | CONNECTION | OTHER
SECRETS = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"]


@pytest.mark.parametrize(
    ("store", "own"),
    [
        *((f"{scheme}://bucket/prefix", AWS) for scheme in ("s3", "s3a", "S3")),
        *((f"{scheme}://bucket", GOOGLE) for scheme in ("gs", "gcs")),
        *((f"{scheme}://container/prefix", AZURE) for scheme in ("az", "azure", "adl", "abfs", "abfss")),
    ],
)
def test_a_store_has_the_variables_of_its_own_cloud(store: str, own: dict[str, str]) -> None:
    assert is_object_store(store)
    assert variables_for_store(ENVIRONMENT, store) == own | CONNECTION


@pytest.mark.parametrize("store", ["", "/data/s3", "s3", "file:///data", "hdfs://name/data", "memory://s3", "s3x://b"])
def test_other_stores_have_none(store: str) -> None:
    assert not is_object_store(store)
    assert variables_for_store(ENVIRONMENT, store) == {}
    assert executor_variables(ENVIRONMENT, "spark://master:7077", store) == {}


def test_all_clouds_together_have_no_other_variables() -> None:
    assert object_store_variables(ENVIRONMENT) == AWS | GOOGLE | AZURE | CONNECTION


def test_executors_of_a_standalone_cluster_receive_no_identity_of_the_drivers_machine() -> None:
    passed = executor_variables(ENVIRONMENT, "spark://master:7077", "s3://bucket")
    assert passed == CONNECTION | {
        name: AWS[name]
        for name in (
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
            *("AWS_ENDPOINT_URL", "AWS_PROFILE"),
        )
    }


@pytest.mark.parametrize("master", ["local", "local[4]", "k8s://https://kubernetes.default.svc", "yarn"])
def test_executors_elsewhere_receive_none(master: str) -> None:
    """Spark would write them into the manifests of executor pods, and into the files of YARN."""
    assert executor_variables(ENVIRONMENT, master, "s3://bucket") == {}


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("secret(file:/run/secrets/key)", "file:/run/secrets/key"),
        (" secret( env:EPOCHAL_SECRET_KEY )\n", "env:EPOCHAL_SECRET_KEY"),
        ("secret(vault:/key)", None),
        ("secret(file:)", None),
        ("secret(file:/key)x", None),
        ("file:/run/secrets/key", None),
        ("wJalrXUtnFEMI/K7MDENG", None),
    ],
)
def test_a_value_can_refer_to_a_secret(value: str, reference: str | None) -> None:
    assert reference_in(value) == reference
    expected = {} if reference is None else {"AWS_SECRET_ACCESS_KEY": reference}
    environment = AWS | CONNECTION | {"AWS_SECRET_ACCESS_KEY": value}
    assert references_in(environment, "s3://bucket") == expected
    assert references_in(environment, "gs://bucket") == references_in(environment, "/data") == {}
    hidden = set(secret_values(environment))
    assert (value in hidden) == (reference is None)


SECRET_NAMES = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SECRET_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_TOKEN",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_FABRIC_SESSION_TOKEN",
    "AZURE_ENCRYPTION_KEY",
    "AZURE_PASSWORD",
    "AZURE_CLIENT_CERTIFICATE_PASSWORD",
    "IDENTITY_HEADER",
]
OPEN_NAMES = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SKIP_SIGNATURE",
    "AWS_REGION",
    "AWS_PROFILE",
    "AWS_CONDITIONAL_PUT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_FABRIC_TOKEN_SERVICE_URL",
    "IDENTITY_ENDPOINT",
]


def test_secret_variables_are_distinguished_from_files_and_roles() -> None:
    assert [name for name in SECRET_NAMES if not is_secret_variable(name)] == []
    assert [name for name in OPEN_NAMES if is_secret_variable(name)] == []
    assert not is_secret_variable("SOME_OTHER_KEY")


def test_values_and_signatures_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    text = " ".join(f"{name}={ENVIRONMENT[name]}" for name in SECRETS) + " AKIA-of-a-test through pl4nted-proxy"
    assert "pl4nted" not in redact(text) and "AKIA-of-a-test" in redact(text)
    signed = "error sending request for url (https://a.blob.example/c?sv=1&sig=pl%34nted&se=2)"
    assert redact(signed) == "error sending request for url (https://a.blob.example/c?sv=1&sig=***&se=2)"
    presigned = "GET https://b.example/k?X-Amz-Signature=pl4nted&X-Amz-Security-Token=pl4nted"
    assert redact(presigned) == "GET https://b.example/k?X-Amz-Signature=***&X-Amz-Security-Token=***"


def test_an_authors_redaction_pattern_is_extended() -> None:
    combined = re.compile(spark_redaction("(?i)salary").replace("(?i)", ""), re.IGNORECASE)
    assert combined.search("Salary") and combined.search("spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY")
    assert not combined.search("spark.executorEnv.AZURE_STORAGE_ACCOUNT_NAME")


def test_the_chart_refuses_the_same_endings() -> None:
    template = (ROOT / "helm" / "epochal" / "templates" / "_pods.tpl").read_text()
    (endings,) = re.findall(r'define "epochal.secretEndings" -\}\}\n(.*)\n', template)
    assert tuple(endings.split("|")) == SECRET_ENDINGS
