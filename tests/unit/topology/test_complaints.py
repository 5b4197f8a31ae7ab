"""What fails again and again is logged now and then."""

from structlog.testing import capture_logs

from topology.complaints import Complaints, line_of


class Heard:
    """Complaints with a clock that stands still until it is told."""

    def __init__(self):
        self.now = 0.0
        self.complaints = Complaints(lambda: self.now)

    def hear(self, error, step="parse", event="step_failing"):
        with capture_logs() as logs:
            self.complaints.hear(event, step, error)
        return told(logs)

    def tell(self, **options):
        with capture_logs() as logs:
            self.complaints.tell(**options)
        return told(logs)


def told(logs):
    return [(line["step"], line["error_class"], line["error"], line["count"]) for line in logs]


def test_the_first_failure_is_told_at_once_and_others_of_its_kind_with_the_next_line():
    heard = Heard()
    assert heard.hear(ValueError("a")) == [("parse", "ValueError", "a", 1)]
    heard.now = 9.9
    assert heard.hear(ValueError("b")) == heard.hear(ValueError("c")) == []
    heard.now = 10.0
    assert heard.hear(ValueError("d")) == [("parse", "ValueError", "d", 3)]


def test_each_step_class_of_error_and_event_has_its_own_lines():
    heard = Heard()
    for error, step, event in [
        (ValueError("a"), "parse", "step_failing"),
        (KeyError("a"), "parse", "step_failing"),
        (ValueError("a"), "enrich", "step_failing"),
        (ValueError("a"), "parse", "tick_failed"),
    ]:
        assert len(heard.hear(error, step, event)) == 1


def test_what_was_held_back_is_told_when_it_is_time_though_nothing_more_fails():
    heard = Heard()
    heard.hear(ValueError("a"))
    heard.hear(ValueError("b"))
    heard.hear(ValueError("c"))
    assert heard.tell() == []
    heard.now = 10.0
    assert heard.tell() == [("parse", "ValueError", "b", 2)]
    assert heard.tell() == []
    assert heard.hear(ValueError("c")) == []  # 10 seconds after that line
    heard.now = 20.0
    assert heard.tell() == [("parse", "ValueError", "c", 1)]


def test_at_the_end_all_of_it_is_told():
    heard = Heard()
    heard.hear(ValueError("a"))
    heard.hear(ValueError("b"))
    assert heard.tell(all_of_it=True) == [("parse", "ValueError", "b", 1)]
    assert heard.tell(all_of_it=True) == []


def test_what_fails_no_more_is_forgotten():
    heard = Heard()
    heard.hear(ValueError("a"))
    heard.now = 10.0
    heard.tell()
    assert heard.complaints._told == {}


def test_an_error_is_told_in_one_line_that_is_not_long():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert line_of(ValueError("one\ntwo")) == "one"
    assert line_of(ValueError()) == "ValueError"
    assert line_of(Mute()) == "Mute"
    assert len(line_of(ValueError("x" * 10_000))) == 500
