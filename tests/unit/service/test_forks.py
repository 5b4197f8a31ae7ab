"""Forks are refused while a pipeline runs, and leave nothing open."""

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from service.forks import ForkRefused, refusing_forks


def test_a_fork_is_refused_on_every_thread_while_it_lasts_and_says_what_to_do() -> None:
    refused: list[BaseException] = []

    def fork() -> None:
        try:
            os.fork()
        except ForkRefused as error:
            refused.append(error)

    with refusing_forks():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        with pytest.raises(ForkRefused, match=r'"spawn"\) or "forkserver"'):
            os.forkpty()
    assert len(refused) == 1


def test_of_two_runs_the_last_one_to_end_lets_forks_be() -> None:
    with refusing_forks():
        with refusing_forks():
            pass
        with pytest.raises(ForkRefused):
            os.fork()
    child = multiprocessing.get_context("fork").Process(target=_nothing)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_what_multiprocessing_has_opened_for_a_child_is_closed() -> None:
    open_before = _open()
    with refusing_forks():
        for _ in range(3):
            with pytest.raises(ForkRefused):
                multiprocessing.get_context("fork").Process(target=_nothing).start()
    assert _open() == open_before


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _nothing() -> None:
    """What a child does."""
