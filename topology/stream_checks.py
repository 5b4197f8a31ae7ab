"""What `then` and `into` are given: bolts are made of it, and what cannot be kept is refused."""

import inspect
import math
import re
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from topology.bolt import Bolt, Component, Kind, check_columns, coroutines_of
from topology.errors import InvalidTopology
from topology.grouping import Grouping
from topology.order import Order
from topology.steps import Retries

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # as Kafka names them
_AWAITED = ("open", "close", "tick")  # of an async bolt
_NEVER_AWAITED = ("drain", "partition_assigned", "partition_revoked")


def is_positive(number: Any) -> bool:
    """Whether it is a finite number above zero."""
    return isinstance(number, Real) and 0 < float(number) < math.inf


def is_count(number: Any) -> bool:
    """Whether it is a whole number above zero."""
    return isinstance(number, Integral) and int(number) > 0


def refuse_unless(given: object, kind: type, where: str, allowed: str) -> None:
    """Raise InvalidTopology for what is not of a kind: not everybody runs mypy."""
    if not isinstance(given, kind):
        raise InvalidTopology(f"{where} got {given!r}; {allowed} is allowed")


def check_topic(topic: object) -> None:
    """Raise InvalidTopology for what can be no topic's name, nor a pattern of names."""
    if isinstance(topic, re.Pattern) and isinstance(topic.pattern, str):
        return
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        message = (
            f"source() got {topic!r}; a topic's name is allowed (1 to 249 of a-z, A-Z, 0-9, "
            "'.', '_' and '-'), or a compiled pattern of names"
        )
        raise InvalidTopology(message)


def made_of(bolt: Any) -> tuple[Any, Callable[[], Any] | None]:
    """The bolt that `then` was given, or made, and what makes another. Raises InvalidTopology."""
    if isinstance(bolt, Component):
        return bolt, None
    if inspect.isabstract(bolt):
        missing = ", ".join(sorted(bolt.__abstractmethods__))
        raise InvalidTopology(f"then() got the class {bolt.__name__}, which lacks {missing}")
    made = bolt() if callable(bolt) and _takes_nothing(bolt) else None
    if isinstance(bolt, type) and issubclass(bolt, Component) and made is None:
        message = (
            f"then() got the class {bolt.__name__}, which needs arguments; an instance is allowed, "
            "or a function without arguments that makes one"
        )
        raise InvalidTopology(message)
    if not isinstance(made, Component):
        message = f"then() got {bolt!r}; a @bolt function, a Bolt or its class is allowed"
        raise InvalidTopology(message)
    return made, bolt


def _takes_nothing(make: Callable[..., Any]) -> bool:
    """Whether it can be called with no argument; what cannot is perhaps a bolt without @bolt."""
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    except ValueError:  # it does not tell
        return True
    return True


def check_calls(label: str, kind: Kind, workers: int, timeout_seconds: float | None) -> None:
    """Raise InvalidTopology unless it may run so many calls at once, each for so long."""
    waits = kind in (Kind.ASYNC, Kind.BLOCKING)
    if waits and not is_count(workers):
        message = f"bolt '{label}' has workers={workers!r}; a whole number from 1 on is allowed"
        raise InvalidTopology(message)
    if not is_count(workers) or (workers > 1 and not waits):
        message = (
            f"bolt '{label}' has workers={workers!r}; a bolt that is neither a coroutine function "
            "nor blocking runs with workers=1"
        )
        raise InvalidTopology(message)
    has_time = waits or kind is Kind.ADVANCED
    if timeout_seconds is not None and not (is_positive(timeout_seconds) and has_time):
        message = (
            f"bolt '{label}' has timeout_seconds={timeout_seconds!r}; a finite, positive number is "
            "allowed for a bolt that is a coroutine function, blocking, or advanced"
        )
        raise InvalidTopology(message)


def check_bolt(label: str, kind: Kind, bolt: Component) -> None:
    """Raise InvalidTopology for what the bolt itself says, besides its `process`."""
    seconds = bolt.tick_seconds
    if seconds is not None and not is_positive(seconds):
        message = f"bolt '{label}' has tick_seconds={seconds!r}; a positive number is allowed"
        raise InvalidTopology(message)
    if kind is Kind.ADVANCED and inspect.iscoroutinefunction(getattr(bolt, "process", None)):
        message = (
            f"bolt '{label}' is advanced and its process is a coroutine function, which nobody "
            "would run; a plain one is allowed"
        )
        raise InvalidTopology(message)
    if kind is Kind.VECTORISED and isinstance(bolt, Bolt):
        check_columns(label, bolt.columns)
    methods = _NEVER_AWAITED if kind is Kind.ASYNC else (*_AWAITED, *_NEVER_AWAITED)
    if names := coroutines_of(bolt, methods):
        message = (
            f"bolt '{label}' is {kind.value} and has async def {', '.join(names)}, which nobody "
            f"would await; allowed for bolts whose process is async: {', '.join(_AWAITED)}"
        )
        raise InvalidTopology(message)


def check_batch(label: str, rows: Any, size: Any, seconds: Any, *, is_own: bool) -> None:
    """Raise InvalidTopology for what `into` was given; `is_own`: the rows are the sink's word."""
    own = " of its own" if is_own else ""
    for name, number, whose in (("batch_rows", rows, own), ("batch_bytes", size, "")):
        if not is_count(number):
            found = f"sink '{label}' has {name}={number!r}{whose}"
            raise InvalidTopology(f"{found}; a whole number above 0 is allowed")
    if not is_positive(seconds):
        message = f"sink '{label}' has batch_seconds={seconds!r}; a positive number is allowed"
        raise InvalidTopology(message)


def check_retries(label: str, retries: Any) -> None:
    """Raise InvalidTopology unless it says when records are tried again."""
    if retries is not None and (isinstance(retries, type) or not isinstance(retries, Retries)):
        message = f"bolt '{label}' has retries={retries!r}; a RetryPolicy is allowed"
        raise InvalidTopology(message)


def check_tasks(label: str, kind: Kind, tasks: int, grouping: Any, *, made_here: bool) -> None:
    """Raise InvalidTopology unless it may have so many tasks, and a grouping."""
    if not is_count(tasks) or (tasks > 1 and (not made_here or kind is Kind.VECTORISED)):
        message = (
            f"bolt '{label}' has tasks={tasks!r}; more than one is allowed for a class, which "
            "then() makes once per task, and not for vectorised bolts"
        )
        raise InvalidTopology(message)
    if grouping is not None and not isinstance(grouping, Grouping):
        message = f"bolt '{label}' has grouping={grouping!r}; shuffle(), fields() … are allowed"
        raise InvalidTopology(message)
    if grouping is not None and kind is Kind.VECTORISED:
        message = f"bolt '{label}' is vectorised and takes whole chunks; it can have no grouping"
        raise InvalidTopology(message)


def check_order(label: str, kind: Kind, order: Order) -> None:
    """Raise InvalidTopology unless it can be called in this order."""
    if order is not Order.NONE and kind in (Kind.VECTORISED, Kind.ADVANCED):
        message = (
            f"bolt '{label}' is {kind.value} and cannot be called in order; a function, "
            "a generator, an async or a blocking bolt is allowed after keyed_by() and ordered()"
        )
        raise InvalidTopology(message)
