"""Ports on 127.0.0.1 for servers that must keep theirs over a restart."""

import contextlib
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"

_LOWEST = 10_240
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL_START = 32_768
_TRIES = 200
_CONNECT_SECONDS = 1.0


def free_ports(count: int, rng: random.Random | None = None) -> tuple[int, ...]:
    """Return different ports that nobody listens on now.

    They lie below the range that the system hands out to outgoing connections. A port
    of that range could be taken by a client while its server is down, even by a client
    that tries to reach that very server and so connects to itself.
    """
    rng = rng or random.SystemRandom()
    highest = _ephemeral_start() - 1
    chosen: list[int] = []
    for _ in range(_TRIES):
        if len(chosen) == count:
            return tuple(chosen)
        port = rng.randint(_LOWEST, highest) if highest > _LOWEST else 0
        with contextlib.suppress(OSError):
            bound = _bind(port)
            if bound not in chosen:
                chosen.append(bound)
    raise OSError(f"no {count} free ports found between {_LOWEST} and {highest}")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    try:
        _bind(port)
    except OSError:
        return False
    return True


def connects(port: int) -> bool:
    """Whether somebody listens on this port."""
    try:
        with socket.create_connection((HOST, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _bind(port: int) -> int:
    with socket.socket() as probe:
        # As Java's servers do: a port whose last connections linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        bound: int = probe.getsockname()[1]
        return bound


def _ephemeral_start() -> int:
    try:
        return int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL_START
