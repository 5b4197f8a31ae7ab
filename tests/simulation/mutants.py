"""Deliberate faults in the real classes, each of which a run must find.

A mutant is a function that gives the patches that make it. No product code knows of them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest import mock

Patches: TypeAlias = list[Any]
MUTANTS: dict[str, Callable[[], Patches]] = {}


def mutant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Put a mutant into the list."""
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """With a mutant's patches, by its name."""
    with ExitStack() as stack:
        for patch in MUTANTS[name]() if name else []:
            stack.enter_context(patch)
        yield


def put(owner: Any, name: str, new: Any) -> Any:
    """A patch."""
    return mock.patch.object(owner, name, new)


def around(owner: Any, name: str, wrap: Callable[..., Any]) -> Any:
    """A patch that gets the original as its first argument."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **named: wrap(original, *args, **named))
