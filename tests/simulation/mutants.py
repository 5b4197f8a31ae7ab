"""Deliberate faults in the real classes, each of which a run must find.

A mutant is a function that gives the patches that make it. No product code knows of them.
"""

from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Patches = list[Any]
MUTANTS = {}


def mutant(make):
    MUTANTS[make.__name__] = make
    return make


def wraps(owner, name):
    """Register a function that gets the original as its first argument."""
    return lambda wrapper: _register(wrapper, lambda: around(owner, name, wrapper))


def replaces(owner, name):
    """Register a function that replaces an attribute."""
    return lambda new: _register(new, lambda: put(owner, name, new))


def _register(function, patch):
    def make():
        return [patch()]

    make.__name__, make.__doc__, make.__module__ = (
        function.__name__,
        function.__doc__,
        function.__module__,
    )
    MUTANTS[function.__name__] = make
    return function


@contextmanager
def mutated(name):
    with ExitStack() as stack:
        for patch in MUTANTS[name]() if name else []:
            stack.enter_context(patch)
        yield


def put(owner, name, new):
    return mock.patch.object(owner, name, new)


def around(owner, name, wrap):
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **named: wrap(original, *args, **named))
