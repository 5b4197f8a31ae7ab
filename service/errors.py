"""Errors of the service; `exit_code` is that of the process."""

from collections.abc import Sequence

EXIT_FAILED, EXIT_USAGE, EXIT_CONFIG = 1, 2, 78


class ServiceError(Exception):
    """The service cannot go on."""

    exit_code = EXIT_FAILED


class BadConfig(ServiceError):
    """The configuration is wrong at one key; `others` are its errors at other keys."""

    exit_code = EXIT_CONFIG

    def __init__(self, place: str, key: str, found: str, allowed: str, line: int = 0) -> None:
        where = f"{place}:{line}" if line else place
        super().__init__(f"{where}: {key}: found {found}, expected {allowed}")
        self.place = place
        self.key = key
        self.found = found
        self.allowed = allowed
        self.line = line
        self.others: Sequence[BadConfig] = ()


class OneReplicaOnly(ServiceError):
    """Another replica runs, and the pipeline is for one host."""

    exit_code = EXIT_CONFIG

    def __init__(self, reason: str, replicas: Sequence[str]) -> None:
        super().__init__(f"{reason}; found the replicas {', '.join(replicas)}, expected one")


class NoTopology(ServiceError):
    """MODULE:TOPOLOGY names no topology."""

    exit_code = EXIT_USAGE


class AddressInUse(ServiceError):
    """The HTTP server cannot listen on its address."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"http: cannot listen on {host}:{port}: {reason}; "
            "set [http] host and port to an address of this machine that is free (0: any port)"
        )


class TaskError(ServiceError):
    """A range cannot be processed on an executor, and a retry cannot help."""

    def __init__(self, error_class: str, error: str) -> None:
        super().__init__(f"a task on Spark failed: {error_class}: {error}")
        self.error_class = error_class
        self.error = error


class TooManyDeadLetters(ServiceError):
    """Too many of the newest records became dead letters."""

    def __init__(self, letters: int, records: int, max_ratio: float) -> None:
        super().__init__(
            f"{letters} of the last {records} resolved records became dead letters, more than "
            f"[dead_letters] max_ratio = {max_ratio:g} allows; the log's step_failing and the "
            "letters say why; what is resolved is stored, and all else is read again"
        )
        self.letters = letters
        self.records = records
