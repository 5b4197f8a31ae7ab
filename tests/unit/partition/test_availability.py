"""Whether brokers answer, as statistics tell: what they owe, and how long they may owe it."""

from typing import Any

from partition.kafka.librdkafka import Availability

NODE = "127.0.0.1:9092"


def told(seconds: float, *, owes: bool, idle: float = 0.0) -> dict[str, Any]:
    """Statistics of a moment: whether the broker owes an answer, and since when it was silent."""
    broker = {
        "state": "UP",
        "source": "learned",
        "nodename": NODE,
        "waitresp_cnt": int(owes),
        "rxidle": int(idle * 1e6),
    }
    return {"ts": int(seconds * 1e6), "brokers": {f"{NODE}/1": broker}}


def begun() -> Availability:
    found = Availability()
    found.begin(0.5)
    found.take(told(100, owes=False))
    assert found
    return found


def test_a_broker_that_owes_an_answer_for_too_long_is_away() -> None:
    """Faults K02."""
    found = begun()
    found.take(told(102, owes=True, idle=1.0))
    found.take(told(104, owes=True, idle=3.0))
    assert found
    found.take(told(107.5, owes=True, idle=6.5))
    assert not found
    found.take(told(109, owes=False, idle=0.1))
    assert found


def test_a_broker_that_told_us_to_wait_is_waited_for_so_much_longer() -> None:
    """Faults K16: a quota that is used up is no outage; a frozen broker still is one."""
    found = begun()
    found.throttled(NODE, 8.0)
    found.take(told(102, owes=True, idle=1.0))
    found.take(told(112, owes=True, idle=11.0))
    assert found
    found.take(told(116, owes=True, idle=15.0))
    assert not found


def test_an_answer_that_is_not_throttled_beside_one_that_is_ends_no_wait() -> None:
    """Faults K16: many questions are under way, and their answers come at one moment."""
    found = begun()
    found.throttled(NODE, 8.0)
    found.throttled(NODE, 0.0)
    found.take(told(102, owes=True, idle=1.0))
    found.take(told(112, owes=True, idle=11.0))
    assert found


def test_once_the_wait_is_over_patience_is_what_it_was() -> None:
    found = begun()
    found.throttled(NODE, 8.0)
    found.take(told(102, owes=True, idle=1.0))
    found.take(told(120, owes=True, idle=1.0))
    assert found
    found.take(told(126, owes=True, idle=7.0))
    assert not found
