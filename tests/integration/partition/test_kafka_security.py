"""Every client of ours signs in to a broker that asks for it: SCRAM, OAUTHBEARER, certificates."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import KafkaDeadLetters, KafkaTopicSink
from partition.errors import PartitionError
from partition.kafka.kafka_catalogue import KafkaCatalogue
from service.app import run_pipeline
from service.config.settings import load
from sinks.storage import Storage
from tests.support.patience import seconds
from tests.support.places import Folder, publish
from tests.support.secured_servers import (
    AUDIENCE,
    AUTHORIZED,
    CLIENT,
    PASSWORD,
    SCOPE,
    SCRAM,
    SECRET,
    USER,
    GuardedKafka,
    Rule,
    TokenServer,
    Way,
)
from tests.support.servers import opened
from tests.support.service import Serving
from topology.errors import SinkFailed
from topology.sink import SinkContext

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WAYS = ("scram", "oauth", "tls")
SECONDS = seconds(60.0)
LIFETIME_SECONDS = 10.0  # renewed after 8; less would end before a connection may be asked again


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    with TokenServer(tmp_path_factory.mktemp("tokens"), LIFETIME_SECONDS).running() as server:
        yield server


@pytest.fixture(scope="module")
def guarded(authority, tokens, tmp_path_factory):
    """A broker with a port for each way; on `elsewhere` it shows another host's certificate."""
    keys = authority.keys("server")
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    server = GuardedKafka(
        tmp_path_factory.mktemp("guarded"),
        Way("scram", SCRAM, keys),
        Way("oauth", "OAUTHBEARER", keys),
        Way("tls", keys=keys),
        Way("elsewhere", keys=authority.keys("elsewhere")),
        trusted=authority.certificate,
        tokens=tokens,
        properties={
            **AUTHORIZED,
            "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": handler,
            "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
            "sasl.oauthbearer.jwks.endpoint.url": tokens.keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.tls.ssl.client.auth": "required",
        },
    )
    with opened(server):
        server.admit()
        yield server


def rules(topic: str) -> list[Rule]:
    """What docs/how-to/secure-kafka.md says that a pipeline's user must be allowed."""
    return [
        ("TOPIC", topic, "READ WRITE"),
        ("TOPIC", f"{topic}.dead", "WRITE READ"),
        ("TOPIC", f"{topic}.out", "WRITE DESCRIBE_CONFIGS"),
        ("TOPIC", f"{topic}.out.transactions", "CREATE READ WRITE DESCRIBE_CONFIGS"),
        ("TRANSACTIONAL_ID", "headrace.*", "WRITE DESCRIBE"),
        ("GROUP", "headrace*", "READ"),
    ]


@pytest.fixture
def properties(guarded, authority, tokens):
    """Return what `[kafka]` must say to come in by a way."""

    def properties(way: str) -> dict[str, Any]:
        certificate, key = authority.pem("client")
        signed_in = {
            "scram": {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": SCRAM,
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            },
            "oauth": {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": tokens.url,
                "sasl.oauthbearer.client.id": CLIENT,
                "sasl.oauthbearer.client.secret": SECRET,
                "sasl.oauthbearer.scope": SCOPE,
            },
            "tls": {
                "security.protocol": "SSL",
                "ssl.certificate.location": str(certificate),
                "ssl.key.location": str(key),
            },
            "elsewhere": {"security.protocol": "SSL"},
        }
        return {
            "bootstrap.servers": guarded.at(way),
            "ssl.ca.location": str(authority.certificate),
            **signed_in[way],
        }

    return properties


@pytest.fixture
def topic(guarded, request):
    """A topic of this test's own with four records, the last of them bad; and one for letters."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    for each in (name, f"{name}.dead", f"{name}.out"):
        guarded.create_topic(each)
    publish(guarded.address, name, [b"a", b"b", b"c", b"bad"])
    return name


@bolt
def parse(record: Record) -> bytes:
    if record.value == b"bad":
        raise Reject("it is bad")
    return record.value or b""


@pytest.mark.parametrize("way", WAYS)
def test_all_clients_of_a_run_sign_in(way, properties, topic, guarded, zookeeper, tmp_path):
    topology = Topology(topic, reliability="exactly-once")
    topology.source(topic).then(parse).into(KafkaTopicSink(f"{topic}.out", value=bytes))
    topology.dead_letters.into(KafkaDeadLetters(f"{topic}.dead"))
    kafka = properties(way)
    if way == "scram":
        guarded.allow(*rules(topic))
    config = load(
        None,
        {
            "kafka": kafka,
            "zookeeper": {"hosts": zookeeper.address},
            "pipeline": {"mirror_to_group": True},
        },
    )
    account = run_pipeline(topology, config, until_caught_up=True)
    assert (account.written, account.dead_lettered, account.unresolved) == (3, 1, 0)
    place = Folder(tmp_path, topic, guarded.at(way), zookeeper.address)
    told = {f"HEADRACE_KAFKA__{k.upper().replace('.', '_')}": v for k, v in kafka.items()}
    place.environment |= told
    checks = {each["name"]: each for each in place.facts("check", "flow:topology")["checks"]}
    assert checks["kafka"]["ok"], checks
    assert checks["dead letters"]["ok"], checks
    [letter] = place.facts("dead-letters", "list", "flow:topology")["letters"]
    assert letter["record"]["offset"] == 3


def test_a_token_is_renewed_while_the_pipeline_runs(properties, topic, zookeeper, tokens, guarded):
    serving = Serving(topic, properties("oauth"), zookeeper.address)
    with serving.runs() as running:
        running.committed(topic, {0: 4})
        issued = tokens.issued
        running.until("there is another token", lambda: tokens.issued > issued)
        publish(guarded.address, topic, [b"later"])
        running.committed(topic, {0: 5})
        account = running.end()
    assert account.unresolved == 0


REFUSED = {
    "a wrong password": ("scram", {"sasl.password": "canary-wrong-1"}, "invalid credentials"),
    "no such user": ("scram", {"sasl.username": "nobody"}, "invalid credentials"),
    "a wrong secret": ("oauth", {"sasl.oauthbearer.client.secret": "canary-2"}, "invalid_client"),
    "another authority": ("scram", {"ssl.ca.location": "another"}, "certificate verify failed"),
    "another host": ("elsewhere", {}, "certificate verify failed"),
    "no certificate": (
        "tls",
        {"ssl.certificate.location": "", "ssl.key.location": ""},
        "certificate",
    ),
    "no TLS": ("scram", {"security.protocol": "SASL_PLAINTEXT"}, "Disconnected"),
}


@pytest.fixture
def refused(properties, another):
    def refused(case: str) -> dict[str, Any]:
        way, wrong, _ = REFUSED[case]
        kafka = {**properties(way), **wrong}
        if "ssl.ca.location" in wrong:
            kafka["ssl.ca.location"] = str(another.certificate)
        return {name: value for name, value in kafka.items() if value != ""}

    return refused


@pytest.mark.parametrize("case", REFUSED)
def test_who_is_refused_is_told_why(case, refused):
    catalogue = KafkaCatalogue(refused(case), ask_seconds=2.0)
    catalogue.open()
    with capture_logs() as logs, pytest.raises(PartitionError) as caught:
        catalogue.topic("orders").result(SECONDS)
    catalogue.close()
    assert REFUSED[case][2] in str(caught.value)
    assert "canary" not in f"{caught.value} {logs}"


def test_sinks_report_rejected_credentials_at_once(refused, monkeypatch):
    monkeypatch.setattr("sinks.kafka.client._ASK_SECONDS", (seconds(1.0),) * 10_000)
    context = SinkContext("p", "s", refused("a wrong password"), Storage(""), None)
    for sink in (KafkaTopicSink[Any]("orders"), KafkaDeadLetters("orders.dead")):
        with pytest.raises(SinkFailed, match="invalid credentials") as caught:
            sink.open(context)
        assert "canary" not in str(caught.value)


def test_a_topic_that_may_not_be_read_ends_the_run_by_its_name(
    properties, topic, guarded, zookeeper
):
    guarded.allow(*[rule for rule in rules(topic) if rule[1] != topic])
    serving = Serving(topic, properties("scram"), zookeeper.address)
    with pytest.raises(PartitionError, match=f"(?i){topic}.*authoriz|authoriz.*{topic}"):
        serving.run()
    assert serving.rows == []
