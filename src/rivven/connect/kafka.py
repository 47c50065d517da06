"""How any Kafka cluster is reached: the settings that source and sink share, as the client library names them.

The client is librdkafka through confluent-kafka. Its configuration is made here from our settings, secrets are
revealed here alone, and what it has to say is turned into errors that name the setting to look at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from rivven.errors import RivvenError

from .sdk import Finding, Secret, Settings, setting

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger("rivven.connect.kafka")

OAUTH_LIFETIME_S = 3600.0
"""A token that we are given has no end that we know of; the client asks for it again after this long."""


class KafkaTrouble(RivvenError, code=215, retriable=True):
    """The cluster cannot be reached, or refuses."""

    message = "Kafka at {brokers}: {text}"


def _brokers(value: str | list[str]) -> str | None:
    names = addresses(value)
    if not names:
        return "must name at least one broker, as host:port"
    for name in names:
        host, _, port = name.rpartition(":")
        if not host or not port.isdecimal():
            return f"{name!r} is no broker; write host:port"
    return None


def addresses(value: str | list[str]) -> list[str]:
    whole = value.split(",") if isinstance(value, str) else value
    return [name.strip() for name in whole if name.strip()]


class KafkaSecurity(Settings):
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "Whether the connection is encrypted (SSL) and who we are is asked (SASL).", default="PLAINTEXT"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = setting(
        "How we say who we are; PLAIN if nothing else is said.", default=None
    )
    sasl_username: str | None = setting("The name.", default=None)
    sasl_password: Secret | None = setting("The password.", default=None)
    oauth_token: Secret | None = setting("The token for OAUTHBEARER.", default=None)
    ssl_ca_cert: str | None = setting("A PEM file with the authorities to trust.", default=None)
    ssl_client_cert: str | None = setting("A PEM file with our certificate.", default=None)
    ssl_client_key: str | None = setting("A PEM file with our key.", default=None)
    ssl_key_password: Secret | None = setting("The password of that key.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        sasl = self.protocol.startswith("SASL")
        if not sasl and (self.sasl_mechanism or self.sasl_username or self.sasl_password or self.oauth_token):
            yield "protocol", f"{self.protocol} does not ask who we are; use SASL_SSL, or leave out the sasl settings"
        if sasl and self.sasl_mechanism == "OAUTHBEARER" and self.oauth_token is None:
            yield "oauth_token", "OAUTHBEARER needs it"
        if sasl and self.sasl_mechanism != "OAUTHBEARER" and not (self.sasl_username and self.sasl_password):
            yield "sasl_username", f"{self.sasl_mechanism or 'PLAIN'} needs sasl_username and sasl_password"
        if (self.ssl_client_cert is None) != (self.ssl_client_key is None):
            yield "ssl_client_key", "our certificate and its key belong together; give both or none"
        if not self.protocol.endswith("SSL") and (self.ssl_ca_cert or self.ssl_client_cert):
            yield "protocol", f"{self.protocol} does not encrypt; use SSL or SASL_SSL, or leave out the ssl settings"

    def options(self) -> dict[str, Any]:
        """As the client names them."""
        made: dict[str, Any] = {"security.protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            made["sasl.mechanism"] = self.sasl_mechanism or "PLAIN"
            if self.oauth_token is not None:
                token = self.oauth_token
                made["oauth_cb"] = lambda _: (token.reveal(), time.time() + OAUTH_LIFETIME_S)
        own = {
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
            "ssl.ca.location": self.ssl_ca_cert,
            "ssl.certificate.location": self.ssl_client_cert,
            "ssl.key.location": self.ssl_client_key,
            "ssl.key.password": self.ssl_key_password,
        }
        for name, value in own.items():
            if value is not None:
                made[name] = value.reveal() if isinstance(value, Secret) else value
        return made


class KafkaSettings(Settings):
    """What source and sink have in common."""

    brokers: str | list[str] = setting(
        "Brokers to begin with, as host:port, with commas between.",
        example="kafka-1:9092,kafka-2:9092",
        check=_brokers,
        also=("bootstrap_servers",),
    )
    security: KafkaSecurity = setting("Encryption, and who we are.", factory=KafkaSecurity)
    client_id: str | None = setting("The name under which the cluster knows us.", default=None)
    request_timeout_ms: int = setting("How long a request may take.", default=30_000, least=100)
    properties: dict[str, Secret] = setting(
        "Further properties of librdkafka, as it names them; they go before all others.", factory=dict
    )

    def options(self, **more: Any) -> dict[str, Any]:
        """The configuration of a client; names in `more` have underscores for dots."""
        made = {
            "bootstrap.servers": ",".join(addresses(self.brokers)),
            "client.id": self.client_id or "rivven-connect",
            "socket.timeout.ms": self.request_timeout_ms,
            "logger": logger,
            **self.security.options(),
        }
        made |= {name.replace("_", "."): value for name, value in more.items()}
        return made | {name: value.reveal() for name, value in self.properties.items()}

    def trouble(self, error: KafkaException | KafkaError | str) -> KafkaTrouble:
        if not isinstance(error, str):
            inner: Any = error.args[0] if isinstance(error, Exception) and error.args else error
            error = inner.str() if hasattr(inner, "str") else str(inner)
        return KafkaTrouble(brokers=",".join(addresses(self.brokers)), text=error)

    def admin(self) -> AdminClient:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return AdminClient(self.options())
        except KafkaException as error:  # a property that there is not, or a file that cannot be read
            raise ValueError(f"the client refuses its settings: {error.args[0].str()}") from None

    def existing(self, admin: AdminClient) -> dict[str, Any]:
        """The topics that there are, with what is known of each."""
        from confluent_kafka import KafkaException

        try:
            return dict(admin.list_topics(timeout=self.request_timeout_ms / 1000).topics)
        except KafkaException as error:
            raise self.trouble(error) from None

    def findings(self) -> tuple[list[Finding], dict[str, Any]]:
        """Whether the cluster can be reached, and its topics."""
        try:
            return [], self.existing(self.admin())
        except ValueError as error:
            return [Finding(str(error), field="properties")], {}
        except KafkaTrouble as error:
            fix = "is the cluster up, and are the addresses and security settings right?"
            return [Finding(str(error), field="brokers", fix=fix)], {}


def offset_spec(which: Literal["earliest", "latest"] | int) -> Any:
    """What to ask a partition for: its first offset, its end, or the first that is as young as a time in ms."""
    from confluent_kafka import admin

    spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # it is documented there
    return spec.for_timestamp(which) if isinstance(which, int) else getattr(spec, which)()
