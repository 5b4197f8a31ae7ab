import json
import uuid
from typing import Any

import pytest

from tests.support.places import Done, Folder, nodes_of, publish

pytestmark = pytest.mark.integration

RECORDS = 10  # in each of three partitions
LAYOUTS = ["core", "core with a wildcard", "trident", "trident-client"]


def outcomes(done: Done) -> list[str]:
    return [row["outcome"] for _, row in sorted(done.facts["partitions"].items())]


class Place(Folder):
    def __init__(self, client, *arguments):
        super().__init__(*arguments)
        self.client = client
        self.path = f"/größe of storm-{uuid.uuid4().hex[:8]}/orders:1"

    def take_over(self, layout: str, *arguments: str) -> Done:
        return self.headrace(
            "offsets", "import-storm", "flow:topology", "--json", "--watch-seconds", "0",
            "--from", layout.split(maxsplit=1)[0], "--path", self.path, *arguments,
        )  # fmt: skip

    def store(self, layout: str, *offsets: int | None) -> None:
        """Storm's nodes that say where to read on, partition by partition; None: no node."""
        for number, offset in enumerate(offsets):
            if offset is None:
                continue
            core = {"topology": {"id": "wc-1", "name": "wc"}, "offset": offset,
                    "partition": number, "broker": {"host": "k", "port": 9092},
                    "topic": self.name}  # fmt: skip
            if layout == "core":
                self.put(f"partition_{number}", core)
            elif layout == "core with a wildcard":
                self.put(f"{self.name}/partition_{number}", core)
            elif layout == "trident":
                batches = {7: (0, 0), 8: (0, offset), 9: (offset, offset + 5)}
                for transaction, (first, following) in batches.items():
                    batch = core | {"offset": first, "nextOffset": following, "instanceId": "i"}
                    self.put(f"user/partition_{number}/{transaction}", batch)
            else:
                batches = {8: (0, offset - 1), 9: (offset, offset + 5)}
                if offset == 0:
                    batches = {8: (-1, -1)}
                for transaction, (first, last) in batches.items():
                    batch = {"firstOffset": first, "lastOffset": last, "topologyId": "wc-1"}
                    self.put(f"user/{self.name}@{number}/{transaction}", batch)
        if layout.startswith("trident"):
            self.put("coordinator/currtx", 9)
            self.put("coordinator/currattempts", {"9": 1})
            self.put("coordinator/meta/9", b"[GlobalPartitionInformation{}]")

    def put(self, path: str, data: Any) -> None:
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        place = f"{self.path}/{path}"
        if self.client.exists(place):
            self.client.set(place, data)
        else:
            self.client.create(place, data, makepath=True)

    def nodes(self, path: str) -> dict[str, tuple[bytes, int]]:
        if not self.client.exists(path):
            return {}
        data, stat = self.client.get(path)
        found = {path: (data, stat.version)}
        for name in self.client.get_children(path):
            found |= self.nodes(f"{path}/{name}")
        return found

    @property
    def stored(self) -> dict[str, tuple[bytes, int]]:
        return self.nodes(f"/headrace/{self.name}")


@pytest.fixture
def place(tmp_path, topic, kafka, zookeeper):
    name = topic(partitions=3)
    for number in range(3):
        publish(kafka.address, name, ["1"] * RECORDS, partition=number)
    with nodes_of(zookeeper) as client:
        yield Place(client, tmp_path, name, kafka.address, zookeeper.address)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pipeline_goes_on_where_storm_stopped(place, layout):
    """Storm 5, Storm 10: 0 is an offset, and the next one is neither skipped nor read twice."""
    place.store(layout, 0, 4, RECORDS)
    storms = place.nodes(place.path)

    done = place.take_over(layout, "--dry-run")
    assert (done.code, outcomes(done)) == (0, ["to_import"] * 3), done.err
    assert place.stored == {}

    done = place.take_over(layout)
    assert (done.code, outcomes(done)) == (0, ["imported"] * 3), done.err
    rows = done.facts["partitions"]
    assert [row["storm_offset"] for _, row in sorted(rows.items())] == [0, 4, RECORDS]
    assert [row["lag"] for _, row in sorted(rows.items())] == [RECORDS, RECORDS - 4, 0]
    stored = place.stored

    done = place.take_over(layout)  # again
    assert (done.code, outcomes(done)) == (0, ["stored_already"] * 3), done.err
    assert place.stored == stored

    account = place.run()
    assert (account["read"], account["rows"]) == (RECORDS + RECORDS - 4, RECORDS + RECORDS - 4)
    assert place.nodes(place.path) == storms

    done = place.take_over(layout)  # the pipeline has run since
    assert (done.code, outcomes(done)) == (1, ["refused", "refused", "stored_already"])


def test_a_path_or_a_server_that_is_wrong_is_one_line_and_1(place):
    """Storm 9: a wrong ZooKeeper or path is told before anything is written."""
    done = place.take_over("core")
    assert (done.code, done.out) == (1, "")
    assert "found no such node" in done.err.splitlines()[-1]
    place.store("core", 1, 2, 3)
    done = place.take_over("trident")
    assert "coordinator/currtx" in done.err.splitlines()[-1]
    done = place.take_over("core", "--storm-zookeeper", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "127.0.0.1:1" in done.err.splitlines()[-1]
    assert place.stored == {}
