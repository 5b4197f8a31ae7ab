"""The pipeline's loop: the order in which it takes what other threads hand over."""

from tests.worlds.running import Works


def test_a_result_that_was_waited_for_is_taken_before_those_behind_it(monkeypatch):
    with Works() as works:
        pipeline = works.pipeline
        taken = []
        monkeypatch.setattr(pipeline._relay, "take_answers", lambda each, _now: taken.append(each))
        for each in ("first", "second", "third"):
            pipeline._results.put(each)
        pipeline._wait(0.0)
        pipeline._results.put("fourth")
        works.turn()
    assert taken == ["first", "second", "third", "fourth"]
