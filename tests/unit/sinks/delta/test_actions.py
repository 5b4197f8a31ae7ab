"""A commit's actions as Delta's protocol spells them."""

import json
from typing import Any

from sinks.files.data_file import DataFile
from sinks.files.statistics import Statistics
from sinks.spark.delta.actions import ActiveFile, actions, active_of_file, active_of_scan

FILE = DataFile("place=a b%41/part.parquet", 2, 100, 7, {"place": "a b%41"}, Statistics(2))


def parsed(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_file_is_added_under_an_escaped_path_and_known_by_it_afterwards() -> None:
    (action,) = parsed(actions([FILE], [], {}, 5))
    assert action["add"] == {
        "path": "place=a%20b%2541/part.parquet",
        "partitionValues": {"place": "a b%41"},
        "size": 100,
        "modificationTime": 7,
        "stats": FILE.statistics.as_delta_json(),
        "dataChange": True,
    }
    known = active_of_file(FILE)
    assert (known.path, known.place) == (action["add"]["path"], FILE.path)
    assert active_of_scan(json.dumps(action)) == known


def test_a_file_is_removed_as_the_log_spells_it() -> None:
    removed = ActiveFile("a%20b/part.parquet", 100, {"place": None})
    lines = parsed(actions([], [removed], {"app": 9}, 5, data_change=False))
    assert lines == [
        {
            "remove": {
                "path": "a%20b/part.parquet",
                "deletionTimestamp": 5,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": {"place": None},
                "size": 100,
            }
        },
        {"txn": {"appId": "app", "version": 9, "lastUpdated": 5}},
    ]


def test_a_file_with_deleted_rows_is_known_as_such() -> None:
    add = {"path": "p", "size": 1, "deletionVector": {"storageType": "u"}}
    found = active_of_scan(json.dumps({"add": add}))
    assert found == ActiveFile("p", 1, {}, None, has_deletions=True)
