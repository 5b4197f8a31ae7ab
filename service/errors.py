"""Errors of the service; `exit_code` is that of the process."""

from collections.abc import Sequence

EXIT_FAILED, EXIT_USAGE, EXIT_CONFIG = 1, 2, 78


class ServiceError(Exception):
    """The service cannot go on."""

    exit_code = EXIT_FAILED


class BadConfig(ServiceError):
    """The configuration is wrong at one key."""

    exit_code = EXIT_CONFIG

    def __init__(self, place: str, key: str, found: str, allowed: str) -> None:
        super().__init__(f"{place}: {key}: found {found}; allowed: {allowed}")
        self.place = place
        self.key = key
        self.found = found
        self.allowed = allowed


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


class ServerEnded(ServiceError):
    """An embedded server has ended unasked."""

    def __init__(self, server: str, log: object) -> None:
        super().__init__(f"{server} has ended; see {log}")


class NotStarted(ServiceError):
    """The process was stopped before the run began; nothing was read."""


class StormStillRuns(ServiceError):
    """Storm still moves its offsets; nothing was written."""

    def __init__(self, partitions: Sequence[object]) -> None:
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        super().__init__(
            f"Storm still runs: its nodes of {partitions[0]}{more} changed while they were "
            "watched; nothing was written; deactivate the topology, wait until its tuples have "
            "timed out, import again"
        )
        self.partitions = list(partitions)


class NotImported(ServiceError):
    """Some of Storm's offsets were rejected, or could not be stored."""

    def __init__(self, refused: int, partitions: int, written: int) -> None:
        done = "nothing was written"
        if written:
            done = (
                f"{written} offsets were written; import the others before the pipeline runs, "
                "since it would begin them at the log's start"
            )
        super().__init__(f"{refused} of {partitions} partitions refused or failed; {done}")


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


class SinksFailed(ServiceError):
    """A command failed for some sinks, and is done for the others."""

    def __init__(self, what: str, sinks: Sequence[str]) -> None:
        super().__init__(f"{what}: {', '.join(sinks)}; what is wrong stands beside each")


class RunIncomplete(ServiceError):
    """The run summary does not reconcile."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the run summary does not reconcile: " + "; ".join(problems))
