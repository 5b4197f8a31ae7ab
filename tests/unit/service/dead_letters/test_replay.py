import hashlib

import pytest

from partition.replicas.balance import Note
from service.dead_letters import replay
from service.dead_letters.replay import Filters, Selection
from service.dead_letters.stored import Mark, RecordContent, encode_mark, headers_to_send
from sinks.kafka.client import CommitUnknown, NotAccepted, ProducerFenced
from tests.support.dead_letters import dead_letter, facts, stored, stored_message, topic_of

NOW = 1_700_000_100_000
OPERATOR = Note("me@host", "rubbish", 1_700_000_000_000)
DROPPED = Mark(1, "dropped", 1_700_000_000_000, "me@host", "rubbish")
REPLAYED = Mark(1, "replayed", 1_700_000_000_000, "me@host", "mended", "orders[3]@99")


def mark(of, at=900):
    value, headers = encode_mark(of)
    return stored_message(headers, value, at)


def replayed(topic, **request):
    selection = Selection(all=request.get("again", False))
    return replay.replay(
        replay.ReplayRequest(**request), topic, selection, OPERATOR, lambda _: True
    )


def dropped(topic):
    return replay.drop(topic, Selection(), OPERATOR, lambda _: True)


@pytest.mark.parametrize(
    ("matching", "others"),
    [
        (Filters(), Filters(topic="others")),
        (Filters(topic="orders", partition=3, offsets=(40, 42)), Filters(partition=2)),
        (Filters(offsets=(42, 42)), Filters(offsets=(43, 50))),
        (Filters(step="parse"), Filters(step="pars")),
        (Filters(error="ValueError"), Filters(error="Value")),
        (Filters(error="NOT json"), Filters(error="YAML")),
        (Filters(since_ms=1_700_000_009_999), Filters(since_ms=1_700_000_010_000)),
        (Filters(until_ms=1_700_000_010_000), Filters(until_ms=1_700_000_009_999)),
        (Filters(pipeline="orders"), Filters(pipeline="others")),
    ],
)
def test_filters_match(matching, others):
    assert matching.match(dead_letter())
    assert not others.match(dead_letter())


def test_options_are_parsed():
    assert replay.parse_id("0:17") == (0, 17)
    assert (replay.parse_offsets("40-90"), replay.parse_offsets("40")) == ((40, 90), (40, 40))
    assert replay.parse_time("2h", NOW) == NOW - 7_200_000
    for text in ("1700000000000", "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"):
        assert replay.parse_time(text, NOW) == 1_700_000_000_000


@pytest.mark.parametrize(
    ("parse", "texts", "expected"),
    [
        (replay.parse_id, ["", "17", "0:", "-1:2", "0:1:2", "a:b"], "PARTITION:OFFSET"),
        (replay.parse_offsets, ["", "9-3", "a-b", "1-", "-1"], "expected A-B"),
        (
            lambda t: replay.parse_time(t, NOW),
            ["", "yesterday", "2w", "2023-13-01"],
            "expected an age",
        ),
    ],
)
def test_invalid_option_says_what_is_expected(parse, texts, expected):
    for text in texts:
        with pytest.raises(ValueError, match=expected):
            parse(text)


def test_selection_counts_what_it_skips():
    notice = stored_message(facts(noticed_at_ms=7), content=None, at=4)
    foreign, others = stored_message(None, at=5), stored(3, pipeline="others")
    topic = topic_of(stored(1), stored(2, 43), others, notice, foreign, mark(DROPPED))
    skipped = replay.Skipped()
    assert [each.id.offset for each in replay.select(topic, Selection(), skipped)] == [2]
    assert skipped == replay.Skipped(dealt_with=1, of_others=1, notices=1, unreadable=1)


def test_record_returns_to_its_partition_or_goes_to_that_of_its_key():
    topic = topic_of(stored(headers_error="no UTF-8"), stored(2, 43))
    first, second = replayed(topic)
    assert [first.outcome, second.outcome] == ["replayed", "replayed"]
    assert [first.to, second.to] == ["orders[3]@100", "orders[3]@101"]
    assert (first.note, first.letter.content) == ("without its headers: no UTF-8", None)
    assert topic.sent == [["orders:3", "orders:3"]]
    topic = topic_of(stored())
    (result,) = replayed(topic, to="new")
    assert (result.to, topic.sent) == ("new[0]@100", [["new:None"]])


def test_mark_of_another_operator_is_read_after_fencing():
    topic = topic_of(stored())
    topic.opened = lambda: topic.messages.append(mark(DROPPED))
    (result,) = replayed(topic)
    assert (result.outcome, topic.sent) == ("refused", [])
    (result,) = replayed(topic, again=True)
    assert result.outcome == "replayed"


def test_replays_are_bounded():
    first = dead_letter()
    own = headers_to_send(first, first.content, earlier=0, source="d", at_ms=1)
    (result,) = replayed(topic_of(stored(own=own)))
    assert result.outcome == "refused"
    assert "was replayed once already, and --max-replays is 1" in result.note
    assert "--max-replays 2 replays it once more" in result.note
    (result,) = replayed(topic_of(stored(own=own)), max_replays=2)
    assert (result.outcome, result.earlier) == ("replayed", 1)
    marks = [mark(REPLAYED), mark(REPLAYED)]
    (result,) = replayed(topic_of(stored(), *marks), max_replays=2, again=True)
    assert "was replayed 2 times already" in result.note


@pytest.mark.parametrize(
    ("source", "said"),
    [("gone", "topic 'gone' does not exist"), ("small", "small[3] does not exist; the topic has")],
)
def test_missing_partition_is_refused(source, said):
    (result,) = replayed(topic_of(stored(topic=source)))
    assert result.outcome == "refused"
    assert said in result.note
    assert "--to" in result.note


def test_twins_are_sent_once_and_all_marked():
    topic = topic_of(stored(1), stored(2), stored(3, 43))
    first, _ = replayed(topic)
    assert [each.offset for each in first.ids] == [1, 2]
    assert topic.sent == [["orders:3", "orders:3"]]
    topic.refresh()
    assert {each.offset for each in topic.marks} == {1, 2, 3}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (RecordContent(b"k", b"value", ()), ""),
        (RecordContent(b"k", b"another", ()), "another record stands there now"),
        (None, "it has expired"),
    ],
)
def test_omitted_value_is_read_from_its_topic(record, said):
    digest = hashlib.sha256(b"value").hexdigest()
    topic = topic_of(stored(value_size=5, value_sha256=digest))
    topic.records = {} if record is None else {42: record}
    (result,) = replayed(topic)
    assert (result.outcome, said in result.note) == ("refused" if said else "replayed", True)


def test_large_batches_are_split_and_throttled():
    topic = topic_of(*(stored(at, at) for at in range(1, 602)))
    assert {each.outcome for each in dropped(topic)} == {"dropped"}
    assert len(topic.sent) == 2
    topic = topic_of(*(stored(at, at) for at in range(1, 5)))
    assert {each.outcome for each in replayed(topic, per_second=50)} == {"replayed"}


def test_rejected_batch_is_retried_one_by_one():
    topic = topic_of(stored(1), stored(2, 43), stored(3, 44))
    topic.errors = [NotAccepted("too large"), None, NotAccepted("too large"), None]
    results = dropped(topic)
    assert [each.outcome for each in results] == ["dropped", "failed", "dropped"]
    said = "Kafka rejects its mark in 'orders.dead', so it was not dropped: too large"
    assert results[1].note == said
    assert topic.messages[-1].value() == (
        b'{"letter":3,"kind":"dropped","at_ms":1700000000000,"by":"me@host","why":"rubbish"}'
    )


def test_rejected_record_is_told_from_a_rejected_mark():
    topic = topic_of(stored())
    topic.rejects = "too large"
    (result,) = replayed(topic)
    assert (result.outcome, result.note) == ("failed", "Kafka rejects it: too large")


def test_unknown_outcome_or_a_fence_ends_the_command():
    topic = topic_of(stored())
    topic.errors = [CommitUnknown("timed out"), ProducerFenced("fenced")]
    (result,) = dropped(topic)
    assert result.outcome == "failed"
    assert "whether it was done, `headrace dead-letters list --all` says" in result.note
    with pytest.raises(replay.ConcurrentOperator, match="which has done 0"):
        dropped(topic)
