"""What a runner calls for a bolt: its function, and around it what makes values of results."""

from collections.abc import Awaitable, Callable
from types import CoroutineType, GeneratorType, NoneType
from typing import Any

from topology.bolt import Bolt, yields_later, yields_many
from topology.calls import misreturned, no_value
from topology.errors import NothingReturned
from topology.running.call import Call, Many
from topology.signals import SIGNALS, SKIP

Process = Callable[[Any], Any]
AsyncProcess = Callable[[Any], Awaitable[Any]]
_BROKEN = frozenset({NoneType, GeneratorType, CoroutineType, *SIGNALS})


def process_of(step: str, bolt: Bolt[Any, Any]) -> Process:
    """What to call per value. It returns a value, SKIP, or Many; or raises."""
    function: Callable[[Any], Any] = bolt.process
    if not yields_many(bolt):
        return function
    return lambda value: many(step, list(function(value)))


def async_process_of(step: str, bolt: Bolt[Any, Any]) -> AsyncProcess:
    """What to await per value. It returns a value, SKIP, or Many; or raises."""
    function: Callable[[Any], Any] = bolt.process
    if not yields_later(bolt):
        return function

    async def gather(value: Any) -> Many:
        return many(step, [out async for out in function(value)])

    return gather


def many(step: str, values: list[Any]) -> Many:
    """The values of one call. Raises NothingReturned if one is None, BoltError for a signal."""
    for value in values:
        if value is None:
            raise NothingReturned(step)
        if type(value) in SIGNALS:
            raise no_value(step, value)
    return Many(value for value in values if value is not SKIP)


def finish(step: str, call: Call, value: Any) -> None:
    """Put what a bolt returned into its call, or why it may not return that."""
    if type(value) not in _BROKEN:
        call.value = value
    elif value is None:
        call.error = NothingReturned(step)
    elif type(value) in SIGNALS:
        call.error = no_value(step, value)
    else:
        call.error = misreturned(step, value)


def overdue(step: str, seconds: float) -> TimeoutError:
    """Why a call failed that took too long."""
    return TimeoutError(f"bolt '{step}' took longer than its {seconds:g} seconds")
