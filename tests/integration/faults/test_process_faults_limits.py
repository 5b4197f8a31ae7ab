"""P04, P05: a process that has no memory left, or no descriptors; on real servers."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from service.embedded.kafka import EmbeddedKafka
from service.embedded.ports import free_ports
from service.embedded.zookeeper import EmbeddedZooKeeper
from tests.acceptance.harness import Launch, Run
from tests.acceptance.processes import until
from tests.acceptance.trial import Trial, places, rows_of
from tests.worlds.memory_group import MemoryGroup
from tests.worlds.probing import answers, ready

pytestmark = pytest.mark.faults

COUNTS = (300, 300)
AT = 150  # the offset of the record that is trouble, in partition 0
MEMORY_BYTES = 500 << 20
DESCRIPTORS, FEW_DESCRIPTORS = 100, 12
LOOKED_SECONDS = 2.0
SECONDS = 60.0
LIMIT = 'ulimit -n "$0" && exec "$@"'


def trial_of(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, folder: Path, launch: Launch
) -> Trial:
    trial = Trial(kafka, zookeeper, folder, topologies="tests.acceptance.starved", launch=launch)
    trial.publish(*COUNTS, trouble=[(0, AT)])
    return trial


def limited(descriptors: int) -> Launch:
    """How to start a process that may have so many descriptors."""

    def launch(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sh", "-c", LIMIT, str(descriptors), *command], **options)

    return launch


def wait(run: Run, what: str, holds: Any) -> None:
    until(what, lambda: holds() or not run.alive, SECONDS, run.tail)
    assert run.alive, run.tail()


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def test_a_process_that_is_out_of_memory_is_killed_and_what_was_not_stored_comes_again(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Promises 1 and 2; Faults P04: the record that takes it all stays unresolved, twice."""
    with MemoryGroup(MEMORY_BYTES) as group:
        trial = trial_of(kafka, zookeeper, tmp_path, group.launch)
        try:
            with trial.watch() as watch:
                stored = []  # after each kill
                for kills in (1, 2):
                    run = trial.start("memory")
                    assert run.wait(SECONDS) == -signal.SIGKILL, run.tail()
                    assert group.kills == kills
                    stored.append(trial.stored())
                    assert stored[-1].get(0, 0) <= AT
                trial.open()
                last = trial.start("memory", "--until-caught-up")
                assert last.wait(SECONDS) == 0, last.tail()
            assert watch.steps_back == []
            rows = trial.rows()
            assert set(rows) == set(rows_of(places(*COUNTS)))
            for row, count in rows.items():
                number, offset = map(int, row.split(":"))
                assert count <= 1 + sum(offset >= each.get(number, 0) for each in stored), row
            assert trial.stored() == dict(enumerate(COUNTS))
            assert trial.letters() == []
        finally:
            trial.end()


def test_a_process_without_descriptors_works_on_with_what_it_has(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Promise 15; Faults P05: nothing is lost, nothing spins, and it answers when it can again."""
    port = free_ports(1)[0]
    trial = trial_of(kafka, zookeeper, tmp_path, limited(DESCRIPTORS))
    try:
        run = trial.start("descriptors", config={"http": {"port": port}})
        trial.wait_for(run, sum(COUNTS) - 1)
        held = Path(f"/proc/{run.pid}/fd")
        wait(run, "no descriptor is left", lambda: len(list(held.iterdir())) == DESCRIPTORS)
        wait(run, "all others are stored", lambda: trial.stored() == {0: AT, 1: COUNTS[1]})
        assert not answers(port), "there is no descriptor for an answer"
        before, began = processor_seconds(run.pid), time.monotonic()
        assert not answers(port)
        time.sleep(LOOKED_SECONDS)  # what is asked is whether nothing happens
        used = (processor_seconds(run.pid) - before) / (time.monotonic() - began)
        assert used < 0.5, f"{used:.2f} of a processor, for nothing"
        trial.open()
        wait(run, "all is stored", lambda: trial.stored() == dict(enumerate(COUNTS)))
        wait(run, "it answers", lambda: ready(port))
        run.send(signal.SIGTERM)
        assert run.wait(SECONDS) == 0, run.tail()
        assert trial.rows() == rows_of(places(*COUNTS))
        assert run.events("http_starved")
    finally:
        trial.end()


def test_too_few_descriptors_to_start_with_are_named(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Faults P05: it ends at once, with the reason as the system gives it."""
    trial = trial_of(kafka, zookeeper, tmp_path, limited(FEW_DESCRIPTORS))
    try:
        run = trial.start("descriptors")
        assert run.wait(SECONDS) > 0
        assert "Too many open files" in run.errors, run.tail()
    finally:
        trial.end()
