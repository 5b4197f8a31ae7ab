import pickle

import pyarrow.fs as pafs
import pytest

from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.masking import mask

CANARY = "canary-8c1d"
KEYS = {"access_key_id": "id-77", "secret_access_key": CANARY}
S3 = Storage("s3://lake/tables", endpoint="http://store:9000", secrets=KEYS)
GOOGLE = Storage("gs://lake", endpoint="http://127.0.0.1:4443")
AZURE = Storage("abfss://lake@shop.dfs.core.windows.net/t", secrets={"account_key": CANARY})


@pytest.fixture(autouse=True)
def nothing_is_known():
    mask.learn(())
    yield
    mask.learn(())


@pytest.mark.parametrize(
    ("warehouse", "table", "uri"),
    [
        ("/data", "shop/orders", "/data/shop/orders"),
        ("/data/", "orders", "/data/orders"),
        ("file:///data", "orders", "/data/orders"),
        ("/data", "file:/elsewhere/orders", "/elsewhere/orders"),
        ("/data", "/a b/50%", "/a b/50%"),
        ("s3://lake/tables", "orders", "s3://lake/tables/orders"),
        ("s3://lake/tables/", "s3a://other/orders", "s3a://other/orders"),
    ],
)
def test_a_table_has_one_absolute_path_or_uri(warehouse, table, uri):
    assert Storage(warehouse).uri(table) == uri


@pytest.mark.parametrize(
    ("storage", "uri", "kind", "path"),
    [
        (Storage("/data"), "/data/a b", pafs.LocalFileSystem, "/data/a b"),
        (S3, "s3://lake/a b/ü", pafs.S3FileSystem, "lake/a b/ü"),
        (S3, "s3a://lake/a b/ü", pafs.S3FileSystem, "lake/a b/ü"),
        (AZURE, AZURE.uri("orders"), pafs.AzureFileSystem, "lake/t/orders"),
        (GOOGLE, "gs://lake/orders", pafs.GcsFileSystem, "lake/orders"),
    ],
)
def test_a_table_is_on_arrows_own_file_system(storage, uri, kind, path):
    files, found = storage.filesystem(uri)
    assert isinstance(files, kind)
    assert found == path
    assert storage.filesystem(uri)[0] == files


def test_a_local_store_needs_no_options():
    storage = Storage("/data")
    assert storage.object_store_options(storage.uri("orders")) == {}
    assert storage.catalog_properties() == {}
    assert all(name.startswith("spark.hadoop.fs.s3") for name in storage.spark_conf())


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_a_name_that_libraries_read_differently_is_refused_in_a_store(name):
    assert Storage("/data").uri(name) == f"/data/{name}"
    with pytest.raises(SinkFailed, match=r"a name without '#', '[?]' and '%'"):
        S3.uri(name)


def test_each_library_gets_the_endpoint_and_the_key_under_its_own_names():
    assert S3.object_store_options("s3://lake/t") == {
        "aws_access_key_id": "id-77",
        "aws_secret_access_key": CANARY,
        "aws_session_token": "",
        "aws_region": "us-east-1",
        "aws_endpoint_url": "http://store:9000",
        "aws_endpoint_url_s3": "http://store:9000",
        "aws_virtual_hosted_style_request": "false",
        "allow_http": "true",
    }
    assert S3.catalog_properties() == {
        "s3.access-key-id": "id-77",
        "s3.secret-access-key": CANARY,
        "s3.region": "us-east-1",
        "s3.endpoint": "http://store:9000",
        "s3.force-virtual-addressing": "false",
    }
    assert S3.spark_conf() == {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.access.key": "id-77",
        "spark.hadoop.fs.s3a.secret.key": CANARY,
        "spark.hadoop.fs.s3a.endpoint": "http://store:9000",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def test_without_a_key_each_library_looks_for_credentials_itself():
    storage = Storage("s3://lake", region="eu-west-1")
    assert storage.object_store_options("s3://lake/t") == {
        "aws_region": "eu-west-1",
        "aws_virtual_hosted_style_request": "true",
    }
    assert storage.catalog_properties() == {
        "s3.region": "eu-west-1",
        "s3.force-virtual-addressing": "true",
    }
    provider = storage.spark_conf()["spark.hadoop.fs.s3a.aws.credentials.provider"]
    assert provider.endswith(".DefaultCredentialsProvider")


def test_a_bucket_that_is_not_in_the_path_is_in_the_hosts_name():
    storage = Storage("s3://lake", endpoint="https://store", path_style=False)
    options = storage.object_store_options("s3://lake/t")
    assert options["aws_endpoint_url_s3"] == "https://lake.store"
    assert options["aws_virtual_hosted_style_request"] == "true"
    assert storage.catalog_properties()["s3.endpoint"] == "https://store"


def test_azure_and_google_have_options_of_their_own():
    assert AZURE.object_store_options(AZURE.uri("orders")) == {"azure_storage_account_key": CANARY}
    assert AZURE.catalog_properties() == {"adls.account-key": CANARY, "adls.account-name": "shop"}
    assert AZURE.spark_conf() == {
        "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": CANARY
    }
    with pytest.raises(SinkFailed, match="abfss://CONTAINER@ACCOUNT"):
        AZURE.filesystem("abfss://lake/orders")
    assert GOOGLE.object_store_options("gs://lake/orders") == {
        "google_base_url": "http://127.0.0.1:4443",
        "allow_http": "true",
    }
    assert GOOGLE.catalog_properties() == {"gcs.service.host": "http://127.0.0.1:4443"}


@pytest.mark.parametrize("uri", ["hdfs://name/orders", "wasbs://c@a.blob/orders"])
def test_another_file_system_is_refused_with_those_that_are_allowed(uri):
    with pytest.raises(SinkFailed, match=r"expected a local path and s3://.* by Spark"):
        Storage("/data").filesystem(uri)


def test_options_of_a_library_go_over_ours():
    options = {
        "arrow": {"request_timeout": 3},
        "delta": {"timeout": "9s", "aws_region": "mars", "allow_http": False},
        "iceberg": {"s3.connect-timeout": 2.5},
    }
    storage = Storage("s3://lake", endpoint="http://store", options=options)
    storage.filesystem("s3://lake/t")
    delta = storage.object_store_options("s3://lake/t")
    assert (delta["timeout"], delta["aws_region"], delta["allow_http"]) == ("9s", "mars", "false")
    assert storage.catalog_properties()["s3.connect-timeout"] == "2.5"


def test_a_secrets_file_that_changed_is_read_again_and_its_secret_hidden(tmp_path):
    file = tmp_path / "secret"
    file.write_text("first-1111\n")
    files = {"secret_access_key": str(file)}
    storage = Storage("s3://lake", secrets=KEYS, secret_files=files)
    before = storage.filesystem("s3://lake/t")[0]
    assert storage.catalog_properties()["s3.secret-access-key"] == "first-1111"
    new = tmp_path / "new"
    new.write_text("second-222")
    new.rename(file)
    assert storage.catalog_properties()["s3.secret-access-key"] == "second-222"
    assert storage.filesystem("s3://lake/t")[0] is not before
    assert mask("no second-222 here") == "no *** here"
    file.unlink()  # as on an executor
    assert storage.catalog_properties()["s3.secret-access-key"] == CANARY


@pytest.mark.parametrize("storage", [S3, AZURE])
def test_no_secret_is_shown_and_a_copy_in_another_process_has_it(storage):
    with_options = Storage("s3://lake", options={"delta": {"aws_secret_access_key": CANARY}})
    assert CANARY not in f"{storage!r} {storage} {with_options!r}"
    assert pickle.loads(pickle.dumps(storage)) == storage  # noqa: S301 - our own
