"""The copy for storm-kafka: whatever becomes of it is told, and never lost in a future."""

from typing import Any

import pytest
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError
from structlog.testing import capture_logs

from partition.zookeeper.connection import ZooKeeperConnection
from partition.zookeeper.store import ZooKeeperStore


class Answer:
    """What an asynchronous call of kazoo gives."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, timeout: float) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Client:
    """A server where each node is deleted by somebody once it has been made."""

    def __init__(self, error: KazooException) -> None:
        self.error = error

    def transaction(self) -> "Client":
        return self

    def set_data(self, path: str, data: bytes) -> None:
        pass

    def commit_async(self) -> Answer:
        return Answer([NoNodeError()])

    def ensure_path_async(self, path: str) -> Answer:
        return Answer(path)

    def set_async(self, path: str, data: bytes) -> Answer:
        return Answer(self.error)


@pytest.mark.parametrize("error", [NoNodeError(), NodeExistsError(), NoAuthError()])
def test_a_mirror_node_that_cannot_be_set_is_told_in_the_log(error: KazooException) -> None:
    connection = ZooKeeperConnection(
        "127.0.0.1:1", {}, session_timeout_seconds=1.0, timeout_seconds=1.0
    )
    connection.client = Client(error)
    connection.connected = True
    store = ZooKeeperStore("127.0.0.1:1", pipeline="p", topology_id="p", storm_mirror="/storm")
    with capture_logs() as logs:
        store._copy(connection, {"/storm/partition_0": b"{}"})
        store._copy(connection, {"/storm/partition_0": b"{}"})
    (told,) = [each for each in logs if each["event"] == "storm_mirror_failed"]
    assert type(error).__name__ in told["error"]
