"""How many requests a transaction costs on an object store: with 200 ms for each they are its time.

A proxy before SeaweedFS counts them. What is written anew by key costs more with every file.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.batches import LINE
from tests.support.lake import Owner, behind_proxies
from tests.support.near_a_store import Answer, Ask, Asked
from tests.support.patience import seconds, until
from tests.support.seaweed import EmbeddedSeaweed
from topology.sink import Batch, Share

pytestmark = pytest.mark.integration

KEPT = 20  # metadata files that an Iceberg table keeps
Counted: TypeAlias = list[str]


class Counting:
    def __init__(self, kind: str, seaweed: EmbeddedSeaweed, folder: Path, stack: ExitStack) -> None:
        self.asked: list[tuple[str, str]] = []
        self.meanwhile: Callable[[], object] = lambda: None  # while each is asked
        lake, proxies = behind_proxies(kind, seaweed, folder, stack)
        for proxy in proxies:
            proxy.fault = self._note
        self.owner = Owner(lake)
        self.owner.fence()
        self.asked = []

    def _note(self, asked: Asked, ask: Ask) -> Answer:
        client = asked.headers["user-agent"].partition("/")[0]
        self.asked.append((f"{asked.method} {asked.path}", client))
        self.meanwhile()
        return ask()

    def commit(self) -> tuple[Counted, Counted]:
        """Commit one transaction: what was asked until it was staged, and then until it was in."""
        self.asked = []
        staged = self.owner.stage()
        until_staged, self.asked = self.asked, []
        self.owner.commit(staged)
        return [each for each, _ in until_staged], [each for each, _ in self.asked]


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("kind", ["delta", "parts"])
def test_a_delta_commit_costs_eight_requests_one_after_the_other(kind, seaweed, tmp_path, stack):
    """delta-rs asks for all eight; meanwhile the last entry is looked at, which costs two more."""
    table = Counting(kind, seaweed, tmp_path, stack)
    for _ in range(3):
        staging, committing = table.commit()
        assert len(staging) == 1, staging
        assert len(committing) <= 8 + 2, committing
        assert sum(client == "object_store" for _, client in table.asked) <= 8, table.asked


def test_files_of_partitions_are_put_at_the_same_time(seaweed, tmp_path, stack):
    table = Counting("parts", seaweed, tmp_path, stack)
    together = threading.Barrier(8)
    table.meanwhile = lambda: together.wait(seconds(60))
    given = [{"number": number, "place": f"{number}"} for number in range(16)]
    share = Share(LINE, 1, 1, 1, 1, 2, "0" * 32, len(given))
    staged = table.owner.sink.stage(Batch(1, [given], len(given), (share,)))
    assert len(staged.parts) == len(table.asked) == len(given)


def test_merge_takes_eleven_requests_plus_three_per_file(seaweed, tmp_path, stack):
    """All but the two for the last entry are delta-rs's. Nothing is staged."""
    table = Counting("upserts", seaweed, tmp_path, stack)
    for number in range(3):
        staging, committing = table.commit()
        assert staging == []
        assert len(committing) <= 11 + 3 * number, committing


@pytest.mark.parametrize("kind", ["iceberg", "iceberg-rest"])
def test_iceberg_commit_takes_three_requests(kind, seaweed, tmp_path, stack):
    """A manifest, their list, and the metadata or the catalogue's request."""
    table = Counting(kind, seaweed, tmp_path, stack)
    for _ in range(3):
        staging, committing = table.commit()
        assert len(staging) == 1, staging
        assert len(committing) <= 3, committing
    if kind == "iceberg":  # else the catalogue removes them
        for _ in range(KEPT):
            table.commit()
        until("a file is removed", lambda: any("DELETE" in each for each, _ in table.asked))
        puts = [each for each, _ in table.asked if each.startswith("PUT") and each[-1] != "/"]
        assert len(puts) <= 3, puts
        assert len(table.asked) <= 3 + 2 * 3, table.asked  # of a removal before it, too
