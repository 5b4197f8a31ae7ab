"""What an operator does about a partition whose open transactions cannot be replayed."""

from typing import TYPE_CHECKING, Any

import msgspec

from partition.records import Partition
from tests.simulation.stored import partition_of

if TYPE_CHECKING:
    from tests.simulation.world import World


def go_on_without(world: "World", partitions: set[Partition]) -> None:
    """Have partitions go on behind what some table has; nobody may have them now.

    What is in no table is read again, as far as the log has it. What is only in some is given up
    in the others: their lines go on behind it.
    """
    for path, node in list(world.zookeeper.nodes.items()):
        partition = partition_of(path)
        if partition not in partitions:
            continue
        try:
            found: Any = msgspec.json.decode(node.data)
            recorded = found["headrace"]["transactions"]
        except (msgspec.DecodeError, KeyError, TypeError):
            continue  # it is damaged, and repaired later
        partitions.discard(partition)
        known = [world.transactions.txid_of(table, partition) for table in world.tables]
        last = max(recorded["committed"], *known)
        for each in recorded["open"]:
            if each["txid"] <= last:
                found["offset"] = each["end"]
                found["headrace"]["leader_epoch"] = each.get("leader_epoch")
        recorded["committed"], recorded["open"] = last, []
        world.seen("partition_went_on_without_its_transactions")
        world.zookeeper.put(path, msgspec.json.encode(found))
        for record in world.transactions.given_up(partition, last):
            record.lost = True
        for table in world.tables:
            table.set_line(str(partition), found["headrace"]["epoch"] + 1, last)
