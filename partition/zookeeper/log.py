"""What kazoo says of a connection: without what it knows of secrets, and its last complaint."""

import logging
from typing import Any


class KazooLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for one KazooClient that keeps the newest warning.

    kazoo tells nobody else why it has no connection: a certificate that was refused, say.
    """

    def __init__(self) -> None:
        super().__init__(quiet_logger(), {})
        self.last = ""  # "" until there is a warning

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Pass it on, and keep it if it is a warning or worse."""
        if level >= logging.WARNING:
            text = str(msg) % args if args else str(msg)
            if not text.startswith("Transition"):  # a state, not a reason
                self.last = text.strip(": ")
        super().log(level, msg, *args, **kwargs)


def quiet_logger() -> logging.Logger:
    """Return the logger for kazoo's client: below WARNING kazoo prints credentials."""
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    quiet = logging.getLogger("kazoo.headrace")
    quiet.setLevel(logging.WARNING)
    quiet.addFilter(_is_loud_enough)  # adding it twice changes nothing
    return quiet


def _is_loud_enough(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
