"""Object stores: how to reach S3, Google Cloud Storage, Azure Blob Storage or a directory, and what went wrong there.

Shared by the sinks that write objects and by those that keep tables in a store. Credentials are Secrets; what is not
set is taken from the environment of the process that writes, as the tools of each cloud do it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivven.errors import RivvenError

from .sdk import Finding, Secret, Settings, setting
from .settings import HIDDEN, fields_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

REGION = "us-east-1"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class StoreTrouble(RivvenError, code=220, retriable=True):
    """A store that cannot be reached, or refuses."""

    message = "{text}"


def _url(value: str) -> str | None:
    if value.startswith(("http://", "https://")):
        return None
    return f"must begin with http:// or https://, not {value!r}"


# How to reach each


class S3Access(Settings):
    region: str | None = setting(
        f"The region; without it that of the environment (AWS_REGION), else {REGION}.", default=None, least=1
    )
    endpoint: str | None = setting(
        "The address of a store that speaks S3, such as MinIO or R2; without it Amazon's own.",
        default=None,
        check=_url,
        example="http://localhost:9000",
    )
    access_key_id: Secret | None = setting(
        "The access key; without it the environment's (AWS_ACCESS_KEY_ID), else the role of the machine.",
        default=None,
    )
    secret_access_key: Secret | None = setting("The secret that belongs to the access key.", default=None)
    session_token: Secret | None = setting("The token of temporary credentials.", default=None)
    anonymous: bool = setting("Send requests unsigned.", default=False)
    force_path_style: bool = setting(
        "The bucket in the path of each request.",
        default=False,
        also=("path_style_access",),
        ignored="the bucket is always in the path, which all stores understand",
    )
    allow_http: bool = setting(
        "Allow an endpoint without TLS.", default=False, ignored="an endpoint that begins with http:// says so"
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.access_key_id and not self.secret_access_key:
            yield "secret_access_key", "is missing: an access_key_id needs it"
        if self.secret_access_key and not self.access_key_id:
            yield "access_key_id", "is missing: a secret_access_key needs it"
        if self.anonymous and self.access_key_id:
            yield "anonymous", "is true although there is an access_key_id; leave out one of the two"

    @property
    def region_or_default(self) -> str:
        return self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION

    def options(self) -> dict[str, Any]:
        skip = True if self.anonymous else None
        return _set({"region": self.region_or_default, "endpoint": self.endpoint, "skip_signature": skip})

    def credentials(self) -> S3Credential:
        """Handed over as a whole, so that a token in the environment is not taken for a part of them."""
        assert self.access_key_id is not None, "the caller has looked"
        assert self.secret_access_key is not None, "problems() has looked"
        return {
            "access_key_id": self.access_key_id.reveal(),
            "secret_access_key": self.secret_access_key.reveal(),
            "token": _text(self.session_token),
            "expires_at": None,
        }


class GcsAccess(Settings):
    service_account_path: str | None = setting(
        "The file with the key of a service account, on every machine that writes.", default=None, least=1
    )
    service_account_key: Secret | None = setting("The key of a service account itself, as JSON.", default=None)
    use_adc: bool = setting(
        "Without a key, use the environment's default credentials: GOOGLE_APPLICATION_CREDENTIALS, those of gcloud, "
        "or those of the machine.",
        default=True,
    )
    endpoint: str | None = setting("Another address of the service.", default=None, check=_url)

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.service_account_path and self.service_account_key:
            yield "service_account_key", "is given beside service_account_path; leave out one of the two"
        if not (self.use_adc or self.service_account_path or self.service_account_key):
            yield "use_adc", "is false, and there is no other way to sign; set service_account_path or _key"

    def options(self) -> dict[str, Any]:
        found = {
            "service_account": self.service_account_path,
            "service_account_key": _text(self.service_account_key),
            "base_url": self.endpoint,
        }
        return _set(found)


class AzureAccess(Settings):
    account: str | None = setting(
        "The storage account; without it the environment's (AZURE_STORAGE_ACCOUNT_NAME).", default=None, least=1
    )
    access_key: Secret | None = setting(
        "A key of the account; without any credentials the environment's (AZURE_STORAGE_ACCOUNT_KEY and others).",
        default=None,
    )
    sas_token: Secret | None = setting("A shared access signature, instead of a key.", default=None)
    use_managed_identity: bool = setting("Use the identity that the machine has in Azure.", default=False)
    endpoint: str | None = setting(
        "Another address of the service, with the account as it stands there.",
        default=None,
        check=_url,
        example="http://127.0.0.1:10000/devstoreaccount1",
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        given = [name for name in ("access_key", "sas_token", "use_managed_identity") if getattr(self, name)]
        if len(given) > 1:
            yield given[1], f"is given beside {given[0]}; leave out one of the two"

    def options(self) -> dict[str, Any]:
        sas = _text(self.sas_token)
        found = {
            "account_name": self.account,
            "account_key": _text(self.access_key),
            "sas_key": sas.removeprefix("?") if sas else None,
            "credential_type": self._kind(),
            "endpoint": self.endpoint,
        }
        return _set(found)

    def _kind(self) -> str | None:
        """Which credentials count, so that others in the environment do not."""
        if self.use_managed_identity:
            return "managed_identity"
        return "access_key" if self.access_key else "sas_token" if self.sas_token else None


class LocalAccess(Settings):
    root: str = setting(
        "The directory in which a bucket is a folder; all machines that write must see it.",
        factory=lambda: str(Path(tempfile.gettempdir()) / "rivven-objects"),
        least=1,
    )


def _text(secret: Secret | None) -> str | None:
    return secret.reveal() if secret else None


def _set(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


Access = S3Access | GcsAccess | AzureAccess | LocalAccess


# Opening

PATIENT: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(minutes=3)}
BRIEF: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}
"""For a check, which somebody waits for."""


def open_store(access: Access, bucket: str, *, brief: bool = False) -> ObjectStore:
    """The store of a bucket. Nothing is asked of it yet."""
    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

    if isinstance(access, LocalAccess):
        return LocalStore(Path(access.root) / bucket, mkdir=True, automatic_cleanup=True)
    plain = bool(access.endpoint and access.endpoint.startswith("http://"))
    client: ClientConfig = {"allow_http": plain, "timeout": "10s" if brief else "120s", "connect_timeout": "5s"}
    retry = BRIEF if brief else PATIENT
    options: Any = access.options()
    if isinstance(access, S3Access):
        provider = access.credentials if access.access_key_id else None
        return S3Store(
            bucket, config=options, client_options=client, retry_config=retry, credential_provider=provider
        )
    if isinstance(access, GcsAccess):
        return GCSStore(bucket, config=options, client_options=client, retry_config=retry)
    return AzureStore(bucket, config=options, client_options=client, retry_config=retry)


# What went wrong


def secrets_of(settings: Settings) -> Iterator[str]:
    """Every secret inside settings."""
    for field in fields_of(type(settings)):
        yield from _secrets_in(getattr(settings, field.name))


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, Settings):
        yield from secrets_of(value)
    elif isinstance(value, Secret) and value:
        yield value.reveal()
    elif isinstance(value, dict):
        for each in value.values():
            yield from _secrets_in(each)


SECRET_CHARS_MIN = 6
"""Shorter ones, such as an option that is `true`, hide nothing and would be found everywhere."""


def told(error: BaseException, settings: Settings) -> str:
    """The words of an error in a line, without a secret."""
    text = COLOUR.sub("", str(error).partition("\n\nDebug source")[0]).replace("↳", ":")
    for secret in secrets_of(settings):
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, HIDDEN)
    text = " ".join(text.split())
    return text if len(text) <= 600 else text[:597] + "..."


@contextmanager
def trouble(settings: Settings, what: str) -> Iterator[None]:
    """Whatever the store complains about comes out as StoreTrouble that says what was being done."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, NotImplementedError) as error:
        raise StoreTrouble(text=f"{what}: {told(error, settings)}") from None  # the cause would show secrets


METADATA_ADDRESS = "169.254.169.254"
"""Where a machine in a cloud asks for its own credentials."""
KEY_FIELDS = {
    S3Access: "s3.access_key_id",
    GcsAccess: "gcs.service_account_path",
    AzureAccess: "azure.access_key",
    LocalAccess: "local.root",
}


def finding(error: BaseException, access: Access, settings: Settings, bucket: str) -> Finding:
    """What an error of a probe means for whoever has to mend it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text, key = told(error, settings), KEY_FIELDS[type(access)]
    section = key.partition(".")[0]
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text or "ContainerNotFound" in text:
        return Finding(f"there is no bucket {bucket!r}", field="bucket", fix="create it, or correct the name")
    if any(words in text.lower() for words in ("credential", "token request", METADATA_ADDRESS)):
        return Finding(f"there are no credentials: {text}", field=key, fix="set them, or set them in the environment")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or " 403 " in text or " 401 " in text:
        fix = "give credentials that may write and delete objects in the bucket"
        return Finding(f"the store refuses: {text}", field=key, fix=fix)
    if isinstance(access, LocalAccess):
        return Finding(text, field=key, fix="name a directory that can be written to")
    if access.endpoint:
        return Finding(text, field=f"{section}.endpoint", fix="correct the address, or start the store")
    return Finding(text, field=section, fix="look at the network, the region and the name of the bucket")
