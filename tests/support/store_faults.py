"""What a store, or the way to it, does to a request."""

import json
import random
from collections.abc import Mapping

from tests.support.near_a_store import Answer, Ask, Asked, Fault


def error(status: int, code: str, asked: Asked, **headers: str) -> Answer:
    """As S3 says it, or Iceberg's catalogue."""
    if asked.path.startswith("/v1/"):
        content = json.dumps({"error": {"message": code, "type": code, "code": status}})
    else:
        content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    given = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Answer(status, content.encode(), given)


def no_reply(_: Asked, ask: Ask) -> None:
    ask()


def asked_twice(_: Asked, ask: Ask) -> Answer:
    ask()
    return ask()


def is_refused(asked: Asked, ask: Ask) -> Answer:
    return error(409, "ConditionalRequestConflict", asked) if asked.is_write else ask()


ONCE: Mapping[str, Fault] = {
    "unavailable": lambda asked, _: error(503, "ServiceUnavailable", asked),
    "slow-down": lambda asked, _: error(503, "SlowDown", asked, Retry_After="1"),
    "internal": lambda asked, _: error(500, "InternalError", asked),
    "no-request": lambda *_: None,
    "no-reply": no_reply,
    "twice": asked_twice,
    "conflict": is_refused,
}


def weather(seed: str, share: float) -> Fault:
    """Let any of these happen to a share of all requests."""
    rng = random.Random(seed)

    def meet(asked: Asked, ask: Ask) -> Answer | None:
        return rng.choice([*ONCE.values()])(asked, ask) if rng.random() < share else ask()

    return meet
