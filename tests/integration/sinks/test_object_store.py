"""A store, as Arrow, delta-rs and pyiceberg each reach it by one `Storage`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyiceberg.io import load_file_io

from headrace.sinks import DeltaSink
from sinks.probe import probe
from sinks.storage import Storage
from tests.support.near_a_store import identity_agent, signed, unconditional
from tests.support.seaweed import KEY_ID, PUBLIC, SECRET, EmbeddedSeaweed
from topology.errors import SinkFailed
from topology.sink import SinkContext

pytestmark = pytest.mark.integration

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def storage(seaweed: EmbeddedSeaweed, request: pytest.FixtureRequest) -> Storage:
    return seaweed.storage(request.node.name.replace("[", "-").replace("]", ""))


def written(storage: Storage, name: str) -> tuple[DeltaTable, AddAction]:
    """A new table, and a data file of its that no version names yet."""
    uri = storage.uri("orders")
    options = storage.object_store_options(uri)
    table = DeltaTable.create(uri, ROWS.schema, mode="ignore", storage_options=options)
    files, folder = storage.filesystem(uri)
    pq.write_table(ROWS, f"{folder}/{name}", filesystem=files)
    size = files.get_file_info(f"{folder}/{name}").size
    return table, AddAction(name, size, {}, 0, data_change=True, stats="{}")


def commit(table: DeltaTable, file: AddAction, txid: int) -> None:
    properties = CommitProperties(
        app_transactions=[Transaction("p/orders/0", txid)], max_commit_retries=0
    )
    table.create_write_transaction([file], "append", table.schema(), commit_properties=properties)


def test_delta_rs_commits_what_arrow_wrote_and_arrow_reads_it(storage: Storage) -> None:
    table, file = written(storage, "a.parquet")
    commit(table, file, 1)
    table.update_incremental()
    assert table.transaction_version("p/orders/0") == 1
    [path] = table.file_uris()
    files, path = storage.filesystem(path)
    assert pq.read_table(path, filesystem=files) == ROWS


def test_of_two_commits_of_one_version_the_second_is_refused(storage: Storage) -> None:
    mine, file = written(storage, "a.parquet")
    theirs, other = written(storage, "b.parquet")
    commit(mine, file, 1)
    with pytest.raises(CommitFailedError):
        commit(theirs, other, 1)


def test_pyiceberg_reads_what_arrow_wrote(storage: Storage) -> None:
    uri = storage.uri("a.txt")
    files, path = storage.filesystem(uri)
    with files.open_output_stream(path) as stream:
        stream.write(b"here")
    with load_file_io(storage.catalog_properties(), uri).new_input(uri).open() as stream:
        assert stream.read() == b"here"


def test_credentials_are_found_in_the_environment(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    nothing_given = replace(storage, secrets={}, region="eu-west-1")  # a client of its own
    assert "refused" in probe(nothing_given)


def test_configured_key_ignores_the_environments_credentials(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "of-somebody-else")
    for name in ("", "_S3"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL{name}", "http://127.0.0.1:1")
    assert "refused" in probe(replace(storage, region="eu-west-3"))


def test_a_key_that_was_changed_in_its_file_is_used_from_then_on(
    storage: Storage, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("one-that-has-expired")
    storage = replace(storage, secret_files={"secret_access_key": str(file)})
    with pytest.raises(SinkFailed, match="cannot write"):
        probe(storage)
    file.write_text(SECRET)
    assert "refused" in probe(storage)


def test_credentials_are_those_of_the_pods_identity(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-pod")
    with identity_agent("of-the-pod", KEY_ID, SECRET) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        assert "refused" in probe(replace(storage, secrets={}, region="eu-west-2"))


def test_store_is_trusted_by_its_ca_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # put back as they were afterwards
        monkeypatch.setenv(name, "")
    server = EmbeddedSeaweed(tmp_path, certificate=signed("127.0.0.1", tmp_path))
    server.open()
    try:
        trusting = replace(server.storage(), endpoint=server.https_url)
        trusting = replace(trusting, ca_file=str(tmp_path / "ca.pem"))
        assert "refused" in probe(trusting)
        with pytest.raises(SinkFailed, match="SSL peer certificate"):
            probe(replace(trusting, ca_file=None))
    finally:
        server.close()


@pytest.mark.parametrize("store", ["local", "s3"])
def test_the_probe_leaves_nothing(store: str, storage: Storage, tmp_path: Path) -> None:
    if store == "local":
        storage = Storage(str(tmp_path / "new"))
    assert probe(storage) == "write, read, conditional overwrite refused, delete"
    files, path = storage.filesystem(storage.warehouse)
    assert files.get_file_info(pafs.FileSelector(path, recursive=True)) == []


def test_key_without_write_access_is_reported(
    seaweed: EmbeddedSeaweed,
) -> None:
    with pytest.raises(SinkFailed, match=r"cannot write: .*ACCESS_DENIED") as refused:
        probe(seaweed.storage(writes=False))
    assert SECRET not in str(refused.value)


def test_a_bucket_that_is_not_there_is_named(storage: Storage) -> None:
    with pytest.raises(SinkFailed, match=r"nobucket/.*cannot write"):
        probe(replace(storage, warehouse="s3://nobucket"))


def test_store_without_conditional_writes_is_refused(
    seaweed: EmbeddedSeaweed,
) -> None:
    with unconditional(seaweed.address) as url:
        storage = replace(seaweed.storage(), warehouse=f"s3://{PUBLIC}/t", endpoint=url)
        with pytest.raises(SinkFailed, match="the store has no conditional writes"):
            probe(storage)
        sink = DeltaSink[Any]("orders", schema=ROWS.schema)
        with pytest.raises(SinkFailed, match="the store has no conditional writes"):
            sink.open(SinkContext("p", "orders", {}, storage, None, exactly_once=True))


def test_probe_deleted_twice_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply was lost, and the request was sent again."""

    class Repeating(pafs.LocalFileSystem):
        def delete_dir(self, path: str) -> None:
            super().delete_dir(path)
            raise FileNotFoundError(path)

    monkeypatch.setattr(Storage, "filesystem", lambda _storage, uri: (Repeating(), uri))
    assert probe(Storage(str(tmp_path))).endswith("delete")
