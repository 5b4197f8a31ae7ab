"""Who a client of ZooKeeper says it is, who may read what it writes, and TLS.

Here they become KazooClient's options. kazoo checks a server's name only when told to, and
shows `auth_data` at level DEBUG: the first is always told, the second is capped in
`partition.zookeeper.log`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kazoo.security import CREATOR_ALL_ACL

Auth = Literal["none", "digest", "sasl"]
Access = Literal["open", "creator"]


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """What a client shows to ZooKeeper, and what it asks of it.

    `auth` is "none", "digest" (ZooKeeper's own scheme: the server knows no users, a node's
    list holds a hash of name and password) or "sasl" (DIGEST-MD5: the server knows them).
    `acl` is who may read and write the nodes made: "open" is everybody, "creator" whoever
    this client is. With `tls` the server's certificate must be of an authority in `ca` or
    in the system's own, and be made out to the name or address that was connected to;
    `certificate` and `key` are this client's own. The password is not in the `repr`.
    """

    auth: Auth = "none"
    username: str = ""
    password: str = field(default="", repr=False)
    acl: Access = "open"
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def kazoo_options(self) -> dict[str, Any]:
        """KazooClient's options, a new table each time: kazoo writes into it.

        The password is among them: do not show them.
        """
        options: dict[str, Any] = {}
        if self.auth == "digest":
            options["auth_data"] = [("digest", f"{self.username}:{self.password}")]
        elif self.auth == "sasl":
            options["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": self.username,
                "password": self.password,
            }
        if self.acl == "creator":
            options["default_acl"] = list(CREATOR_ALL_ACL)
        if self.tls:
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": True}
            files = {"ca": self.ca, "certfile": self.certificate, "keyfile": self.key}
            options |= {name: str(path) for name, path in files.items() if path is not None}
        return options
