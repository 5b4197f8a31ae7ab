"""Three ZooKeeper servers that are one, on one machine. One that is left answers what is read."""

from collections.abc import Iterator
from pathlib import Path

from service.devservers.server import HOST, free_ports
from service.devservers.servers import EmbeddedZooKeeper, four_letters
from tests.support.patience import until

SERVERS = (1, 2, 3)
_SECONDS = 60.0


class ZooKeeperEnsemble:
    """Its servers, by number; each may be stopped and started by itself."""

    def __init__(self, folder: Path) -> None:
        peers = iter(free_ports(3 * len(SERVERS)))
        addresses = {each: (next(peers), next(peers), next(peers)) for each in SERVERS}
        members = {
            f"server.{each}": f"{HOST}:{quorum}:{election}"
            for each, (_port, quorum, election) in addresses.items()
        }
        self.servers: dict[int, EmbeddedZooKeeper] = {}
        for each in SERVERS:
            data = folder / str(each) / "zookeeper-data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(each))
            self.servers[each] = EmbeddedZooKeeper(
                folder / str(each),
                addresses[each][0],
                properties={
                    **members,
                    "initLimit": "20",
                    "syncLimit": "10",
                    "4lw.commands.whitelist": "ruok,srvr,stat,conf,mntr,isro",
                },
                flags=["-Dreadonlymode.enabled=true"],
            )

    @property
    def hosts(self) -> str:
        """All servers, as a client is told of them."""
        return ",".join(server.address for server in self.servers.values())

    def open(self) -> None:
        """Start those that do not run; return when all take writes."""
        for server in self.servers.values():
            server.open()
        until("all take writes", lambda: set(self._modes()) == {"rw"}, _SECONDS)

    def leave_one(self) -> EmbeddedZooKeeper:
        """Stop all but one; return that when it answers, and takes no writes."""
        *others, left = self.servers.values()
        for server in others:
            server.close()
        until("it is read-only", lambda: four_letters(left.port, "isro").strip() == "ro", _SECONDS)
        return left

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    def _modes(self) -> Iterator[str]:
        return (four_letters(each.port, "isro").strip() for each in self.servers.values())


def read_only(server: EmbeddedZooKeeper) -> str:
    """The newest transaction of a server that takes no writes; another after a write.

    It is asked by a four-letter word: kazoo cannot read what such a server answers to a client.
    """
    told = dict(
        line.split(": ", 1)
        for line in four_letters(server.port, "srvr").splitlines()
        if ": " in line
    )
    assert told["Mode"] == "read-only"
    return told["Zxid"]
