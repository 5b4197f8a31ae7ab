"""Whether the warehouse's store does what a table needs of it."""

import importlib.util
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.fs as pafs

from sinks.storage import Storage
from topology.errors import SinkFailed

_CONTENT = b"written by headrace check"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m↳?")
_ROUNDS = 20
_SCHEMA = pa.schema([("probe", pa.int64())])


def probe(storage: Storage) -> str:
    """Write, read, conditionally overwrite and delete in a folder of its own.

    Returns what was done. Raises SinkFailed with what the store, or these credentials, cannot do.
    """
    uri = storage.uri(f".headrace-check-{uuid.uuid4().hex}")
    files, folder = storage.filesystem(uri)
    has_delta = importlib.util.find_spec("deltalake") is not None
    try:
        if isinstance(files, pafs.LocalFileSystem):
            with _doing("create", folder):
                files.create_dir(folder)
        with _doing("write", folder), files.open_output_stream(f"{folder}/probe") as written:
            written.write(_CONTENT)
        with _doing("read", folder), files.open_input_stream(f"{folder}/probe") as read:
            _check(read.read(), folder)
        if has_delta:
            check_conditional_writes(storage, uri)
    except BaseException:
        with suppress(OSError):
            files.delete_dir(folder)
        raise
    with _doing("delete", folder):
        files.delete_dir(folder)
    condition = "conditional overwrite refused" if has_delta else "no headrace[delta] to overwrite"
    return f"write, read, {condition}, delete"


def check_conditional_writes(storage: Storage, uri: str) -> None:
    """Raise SinkFailed unless of two writers of one object the second is refused.

    Without that two commits of one version of a Delta table overwrite each other in silence.
    Arrow's S3 cannot write conditionally, so delta-rs does, as it does in a commit: two threads
    create one table, in folders below `uri`. One may find the other's table before it writes; then
    nothing is known, and they try again.
    """
    for number in range(_ROUNDS):
        outcomes = _race(storage, f"{uri}/race-{number}")
        won = outcomes.count(None)
        if won > 1:
            raise SinkFailed(
                f"{uri}: the store has no conditional writes (If-None-Match): of two commits of "
                "one version both were accepted, so rows would be lost; take a store that has them"
            )
        reasons = [each for each in outcomes if each is not None]
        if won == 0:
            raise SinkFailed(f"{uri}: no conditional write succeeded: {plain_message(reasons[0])}")
        if any(type(each).__name__ == "CommitFailedError" for each in reasons):
            return
    raise SinkFailed(f"{uri}: two writers never met, so conditional writes are not known")


def _race(storage: Storage, uri: str) -> list[Exception | None]:
    """What became of two writers: None for one that won."""
    from deltalake import CommitProperties, DeltaTable  # noqa: PLC0415 - an extra

    options = storage.object_store_options(uri)
    start = threading.Barrier(2)
    outcomes: list[Exception | None] = []

    def create() -> None:
        start.wait()
        try:
            DeltaTable.create(
                uri,
                schema=_SCHEMA,
                storage_options=options,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            outcomes.append(None)
        except Exception as error:  # noqa: BLE001 - told by the caller
            outcomes.append(error)

    threads = [threading.Thread(target=create, name=f"probe-{n}") for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def plain_message(error: Exception) -> str:
    """Return on one line what delta-rs says on several, in colour."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def _check(content: bytes, folder: str) -> None:
    if content != _CONTENT:
        raise SinkFailed(f"{folder}: another content was read than was written")


@contextmanager
def _doing(what: str, folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkFailed(f"{folder}: cannot {what}: {error}") from error
