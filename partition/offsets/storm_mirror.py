"""A copy of the stored offsets where storm-kafka would look for them: the way back to Storm."""

from collections.abc import Mapping

from partition.chunk import Partition
from partition.offsets.access import NodeNames
from partition.offsets.znode import OffsetNode, encode
from partition.position import Position


class StormMirror:
    """Where a copy lies and what is in it: storm-kafka's own JSON and nothing of ours.

    `path` is `<zkRoot>/<id>` of storm-kafka's SpoutConfig. With `by_topic` a partition lies
    in `<path>/<topic>/partition_<N>`, as with storm-kafka's topic wildcard, else in
    `<path>/partition_<N>`.
    """

    def __init__(self, path: str, names: NodeNames, *, by_topic: bool = False) -> None:
        self._path = path.rstrip("/")
        self._names = names
        self._by_topic = by_topic

    def nodes(self, positions: Mapping[Partition, Position]) -> dict[str, bytes]:
        """Return the nodes that show these positions."""
        return {
            self._node_path(partition): encode(
                partition, OffsetNode(self._names.stored(position)), self._names.broker
            )
            for partition, position in positions.items()
        }

    def _node_path(self, partition: Partition) -> str:
        topic = f"/{partition.topic}" if self._by_topic else ""
        return f"{self._path}{topic}/partition_{partition.number}"
