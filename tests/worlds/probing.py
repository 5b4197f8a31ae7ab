"""What a service answers on its port."""

import json
import urllib.error
import urllib.request

_SECONDS = 1.0


def ready(port: int) -> bool:
    """Whether it says that it is ready."""
    return _ask(port) == (200, [])


def answers(port: int) -> bool:
    """Whether anybody answers in time."""
    return _ask(port)[0] != 0


def problems(port: int) -> list[str]:
    """What it says is wrong; nothing if nobody answers."""
    return _ask(port)[1]


def _ask(port: int) -> tuple[int, list[str]]:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/health/ready", timeout=_SECONDS
        ) as answer:
            return answer.status, json.load(answer)["problems"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["problems"]
    except OSError:
        return 0, []
