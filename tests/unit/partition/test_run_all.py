from functools import partial

import pytest

from partition.errors import StoreError
from partition.offsets.requests import Read, ReplyLost, Run, SessionEnded, run_all


def asks(*paths):
    """Read paths; the errors are among the replies."""
    replies = []
    for path in paths:
        try:
            replies.append((yield Read(path)))
        except (ReplyLost, SessionEnded, StoreError) as error:
            replies.append(type(error))
    return replies


class Server:
    def __init__(self, replies, ended):
        self.replies = replies
        self.ended = ended
        self.log = []

    def send(self, request):
        self.log.append(f"sent {request.path}")
        return partial(self.reply, request.path)

    def reply(self, path):
        self.log.append(f"replied {path}")
        found = self.replies.get(path)
        if isinstance(found, Exception):
            raise found
        return found

    def session_ended(self):
        return next(self.ended, False)


def test_all_are_sent_before_the_first_reply_is_waited_for():
    server = Server({}, iter(()))
    runs = [Run(asks("a", "b")), Run(asks("c"))]
    run_all(runs, server.send, server.session_ended)
    assert server.log == ["sent a", "sent c", "replied a", "replied c", "sent b", "replied b"]
    assert [run.future.result(0) for run in runs] == [[None, None], [None]]


def test_ended_session_is_reported_except_for_final_errors():
    server = Server({"lost": ReplyLost(), "refused": StoreError("no")}, iter((False, True)))
    runs = [Run(asks(path, "next")) for path in ("done", "lost", "refused")]
    run_all(runs, server.send, server.session_ended)
    assert [run.future.result(0) for run in runs] == [
        [SessionEnded, None],
        [SessionEnded, None],
        [StoreError, None],
    ]


def test_what_was_cancelled_is_not_begun_and_an_error_is_its_own():
    def fails():
        yield Read("x")
        raise StoreError("of one")

    server = Server({}, iter(()))
    cancelled, failed, fine = Run(asks("a")), Run(fails()), Run(asks("b"))
    cancelled.future.cancel()
    run_all([cancelled, failed, fine], server.send, server.session_ended)
    assert "sent a" not in server.log
    with pytest.raises(StoreError, match="of one"):
        failed.future.result(0)
    assert fine.future.result(0) == [None]
