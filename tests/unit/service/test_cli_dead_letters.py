import pytest

from headrace.sinks import KafkaDeadLetters
from service.dead_letters.stored import headers_to_send
from tests.support import commands
from tests.support.commands import TARGET, FileSink, topology_of
from tests.support.dead_letters import dead_letter, stored, stored_message, topic_of
from tests.unit.service.conftest import cells_of, facts_of, words_of

ALL = ("--every", "--why", "mended", "--yes")


@pytest.fixture
def topic():
    own = [("trace", b"7"), *stored(offset=43, step="\x1b[2J").headers()]
    worse = stored_message(own, b"\x1b[2J is worse", 2)
    return topic_of(stored(reason="not\nJSON"), worse, stored(3, pipeline="others"))


@pytest.fixture
def letters(headrace, service_toml, monkeypatch, topic):
    made = topology_of([FileSink("a")])
    made.dead_letters.sink = KafkaDeadLetters("orders.dead")
    monkeypatch.setattr(commands, "topology", made)
    monkeypatch.setattr("service.cli.dead_letters.DeadLetterTopic", lambda *_: topic)

    def letters(name, *words):
        return headrace("dead-letters", name, TARGET, *words, "--config", str(service_toml))

    return letters


def test_open_letters_are_listed_and_counted(letters):
    code, out, _ = letters("list", "--json")
    facts = facts_of(out)
    assert (code, facts["total"]) == (0, 2)
    assert (facts["topic"], facts["pipeline"]) == ("orders.dead", "orders")
    assert facts["by_error"] == [
        {"step": step, "error_class": "ValueError", "letters": 1} for step in ("parse", "\x1b[2J")
    ]
    passed_over = {"dealt_with": 0, "of_others": 1, "notices": 0, "unreadable": 0}
    assert facts["passed_over"] == passed_over
    assert facts["letters"][1] == {
        "letter": "2:1", "step": "parse", "attempts": 3, "error_class": "ValueError",
        "record": {"topic": "orders", "partition": 3, "offset": 42, "timestamp_ms": 17 * 10**11},
        "origin": {"topic": "orders", "partition": 3, "offset": 42, "timestamp_ms": 17 * 10**11},
        "replays": 0, "pipeline": "orders", "reason": "not\nJSON", "state": "open", "marks": [],
        "failed_at_ms": 1_700_000_009_999, "headers_error": None, "key_bytes": None,
        "value_bytes": 7, "error_at": None,
    }  # fmt: skip
    _, out, _ = letters("list", "--limit", "1")
    assert cells_of(out) == [
        ["2:2", "2023-11-14 22:13:29", "orders[3]@43", "\\x1b[2J", "ValueError", "not JSON", "open"]
    ]
    first, second, *_ = out.splitlines()
    assert (first.strip(), second.strip()) == (
        "1  parse: ValueError: not\\nJSON", "1  \\x1b[2J: ValueError: not JSON",
    )  # fmt: skip
    for line in ("2 letters in 'orders.dead'; the newest 1 are shown (--limit)",
                 "1 more are of other pipelines; --pipeline NAME lists them"):  # fmt: skip
        assert line in out
    filters = ("--topic=orders", "--offsets=40-42", "--since=2023-11-14", "--until=1d")
    assert facts_of(letters("list", *filters, "--json")[1])["total"] == 1


def test_letter_is_shown_without_commands_to_the_terminal(letters):
    code, out, _ = letters("show", "2:2")
    assert code == 0
    assert "\x1b" not in out
    for line in ("step:            \\x1b[2J", "state:           open", "  trace: 7",
                 "value (13 bytes):", "  \\x1b[2J is worse"):  # fmt: skip
        assert line in out.splitlines()
    content = {"key": "QUE=", "value": "G1sySiBpcyB3b3JzZQ==", "headers": [["trace", "Nw=="]]}
    assert facts_of(letters("show", "2:2", "--json")[1])["content"] == content
    assert letters("show", "2:2", "--value-only")[1] == "\x1b[2J is worse"


def test_replayed_letter_is_shown_with_its_history(letters, topic):
    first = dead_letter()
    own = headers_to_send(first, first.content, earlier=0, source="d", at_ms=1)
    topic.messages = [stored(own=own), stored(2, 50, value_size=5, value_sha256="0" * 64)]
    _, out, _ = letters("show", "2:1")
    assert "came first from: orders[3]@42" in out
    assert "  (none)" in out, "its headers"
    _, out, _ = letters("show", "2:2")
    assert "the dead letter lacks its value, 5 bytes of orders[3]@50; it has expired" in out
    assert facts_of(letters("show", "2:2", "--json")[1])["content"] is None
    code, out, err = letters("show", "2:2", "--value-only")
    assert (code, out) == (1, "")
    assert "1 of 1 dead letters were not written, 0 were: the dead" in err


def test_replay_and_drop_print_what_became_of_each(letters, topic):
    code, out, _ = letters("replay", "--step", "parse", "--why", "mended", "--dry-run", "--json")
    facts = facts_of(out)
    assert (code, facts["replayed"], facts["dry_run"]) == (0, 0, True)
    assert [each["outcome"] for each in facts["letters"].values()] == ["to_replay"]
    code, out, _ = letters("replay", "--step", "parse", "--why", "mended", "--yes")
    assert (code, cells_of(out)) == (0, [["2:1", "orders[3]@42", "replayed", "orders[3]@100"]])
    code, out, err = letters("replay", "2:1", "--why", "x", "--yes")
    assert (code, cells_of(out)[0][2]) == (1, "refused")
    assert "1 of 1 dead letters were not replayed, 0 were: replayed as orders[3]@100" in err
    code, out, _ = letters("drop", *ALL, "--json")
    facts = facts_of(out)
    assert (code, facts["dropped"], facts["why"]) == (0, 1, "mended")
    assert facts["letters"]["2:2"] == {
        "outcome": "dropped", "note": "", "record": "orders[3]@43", "origin": "orders[3]@43",
        "to": None, "twins": [],
    }  # fmt: skip
    assert "no open letter\nnothing was sent or marked" in letters("drop", *ALL)[1]
    assert [row[-1] for row in cells_of(letters("list", "--all")[1])] == ["dropped", "replayed"]


def test_operator_is_asked_first(letters, topic, monkeypatch):
    for word, outcome in (("n", "would be dropped"), ("y", "dropped")):
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("typer.confirm", lambda *_, yes=word == "y", **__: yes)
        out = letters("drop", "--every", "--why", "x")[1]
        assert {row[2] for row in cells_of(out)} == {outcome}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("replay --why x --yes", 2, "PARTITION:OFFSET of some, a filter, or --every is needed"),
        ("replay 0:0 --every --why x", 2, "either letters or filters are needed"),
        ("drop --every --step parse --why x", 2, "it goes with no filter"),
        ("drop --every --why x", 2, "nobody can be asked here: give --yes to drop 2 letters"),
        ("list --since yesterday", 2, "expected an age"),
        ("list --offsets 9-3", 2, "expected A-B"),
        ("show 0", 2, "expected PARTITION:OFFSET"),
        ("show 2:99", 1, "there is no dead letter at 2:99: orders.dead[2] holds offsets 0 to 1999"),
        ("show 7:1", 1, "there is no dead letter at 7:1: 'orders.dead' has partitions [2]"),
        ("replay 2:99 --why x --yes", 1, "there is no dead letter at 2:99"),
        ("replay --every --why x --yes --to gone", 1, "topic 'gone' does not exist"),
    ],
)
def test_what_is_asked_wrongly_is_told_and_nothing_is_done(letters, topic, words, code, said):
    found, _, err = letters(*words.split())
    assert (found, topic.sent) == (code, [])
    assert said in words_of(err)


def test_other_messages_are_no_letters(letters, topic):
    topic.messages.append(stored_message(None, at=4))
    letters("drop", "2:1", "--why", "x", "--yes")
    for at, said in ((4, "it has no header"), (1000, "it is a mark")):
        assert said in letters("show", f"2:{at}")[2]


def test_letters_need_a_kafka_topic(headrace, service_toml, monkeypatch):
    monkeypatch.setattr(commands, "topology", topology_of([FileSink("a")]))
    code, _, err = headrace("dead-letters", "list", TARGET, "--config", str(service_toml))
    assert (code, "go into a MemoryDeadLetters" in err) == (1, True)
