"""Probe of the warehouse's store, for the operations that a table needs."""

import importlib.util
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pyarrow.fs as pafs

from sinks.storage import Storage
from topology.errors import SinkFailed

_CONTENT = b"written by headrace check"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m↳?")
_ROUNDS = 20
_MOST_AHEAD_SECONDS = 3600.0  # files wait up to 12 hours, and are removed after 24
_TRIES, _PAUSE_SECONDS = 3, 0.5
_SCHEMA = pa.schema([("probe", pa.int64())])


def probe(storage: Storage) -> str:
    """Write, read, conditionally overwrite and delete in a folder of its own.

    Returns what was done. Raises SinkFailed with what the store, or these credentials, cannot do.
    """
    uri = storage.uri(f".headrace-check-{uuid.uuid4().hex}")
    files, folder = storage.filesystem(uri)
    has_delta = importlib.util.find_spec("deltalake") is not None

    def write() -> None:
        if isinstance(files, pafs.LocalFileSystem):
            files.create_dir(folder)
        with files.open_output_stream(f"{folder}/probe") as written:
            written.write(_CONTENT)

    def read() -> None:
        with files.open_input_stream(f"{folder}/probe") as stream:
            if stream.read() != _CONTENT:
                raise SinkFailed(f"{folder}: another content was read than was written")

    try:
        _do("write", folder, write)
        _do("read", folder, read)
        if has_delta:
            check_conditional_writes(storage, uri)
    except BaseException:
        with suppress(OSError):
            files.delete_dir(folder)
        raise

    def delete() -> None:
        with suppress(FileNotFoundError):  # a request is sent again when its reply was lost
            files.delete_dir(folder)

    _do("delete", folder, delete)
    condition = "conditional overwrite refused" if has_delta else "no headrace[delta] to overwrite"
    return f"write, read, {condition}, delete"


def check_clock(storage: Storage, uri: str) -> None:
    """Raise SinkFailed if the age of a file below `uri` would be told too high.

    A store dates files by a clock of its own.
    """
    files, folder = storage.filesystem(uri)
    path = f"{folder}/.headrace-clock-{uuid.uuid4().hex}"
    with files.open_output_stream(path) as written:
        written.write(_CONTENT)
    try:
        ahead = time.time() - (files.get_file_info(path).mtime_ns or 0) / 1e9
    finally:
        files.delete_file(path)
    if ahead > _MOST_AHEAD_SECONDS:
        raise SinkFailed(
            f"{uri}: this host's clock is {ahead / 3600:.0f} hours ahead of the store's, so files "
            "that are about to be committed would be taken for old; set the clock right"
        )


def check_conditional_writes(storage: Storage, uri: str) -> None:
    """Raise SinkFailed unless of two writers of one object the second is refused.

    Without that two commits of one version of a Delta table overwrite each other in silence.
    Arrow's S3 cannot write conditionally, so delta-rs does, as it does in a commit: two threads
    create one table, in folders below `uri`. One may find the other's table before it writes, or
    both lose a reply; then nothing is known, and they try again.
    """
    nobodys = 0
    for number in range(_ROUNDS):
        outcomes = _race(storage, f"{uri}/race-{number}")
        won = outcomes.count(None)
        if won > 1:
            raise SinkFailed(
                f"{uri}: the store has no conditional writes (If-None-Match): of two commits of "
                "one version both were accepted, so rows would be lost; take a store that has them"
            )
        reasons = [each for each in outcomes if each is not None]
        nobodys += won == 0
        if nobodys == _TRIES:
            raise SinkFailed(f"{uri}: no conditional write succeeded: {plain_message(reasons[0])}")
        if won and any(type(each).__name__ == "CommitFailedError" for each in reasons):
            return
    raise SinkFailed(f"{uri}: two writers never met, so conditional writes are not known")


def _race(storage: Storage, uri: str) -> list[BaseException | None]:
    from deltalake import CommitProperties, DeltaTable  # noqa: PLC0415 - an extra

    options = storage.object_store_options(uri)
    start = threading.Barrier(2)

    def create() -> None:
        start.wait()
        DeltaTable.create(
            uri,
            schema=_SCHEMA,
            storage_options=options,
            commit_properties=CommitProperties(max_commit_retries=0),
        )

    with ThreadPoolExecutor(2, "probe") as pool:
        racers = [pool.submit(create) for _ in range(2)]
    return [racer.exception() for racer in racers]


def plain_message(error: BaseException) -> str:
    """Return on one line what delta-rs says on several, in colour."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def _do(what: str, folder: str, work: Callable[[], object]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            work()
        except OSError as error:
            if not left:
                raise SinkFailed(f"{folder}: cannot {what}: {error}") from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return
