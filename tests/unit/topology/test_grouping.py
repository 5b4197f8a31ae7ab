import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from headrace import custom, fields, global_, stable_hash
from tests.support.patience import seconds
from topology.errors import BoltError
from topology.grouping import key_of

VECTORS = {
    b"": 0,
    b"123456789": 0xCBF43926,  # the check value of CRC-32
    b"user-1": 2116437524,
    "user-1": 1591425390,
    "ß": 2603566977,
    0: 4108050209,
    42: 841265288,
    -1: 808273962,
    1.5: 2270993338,
    True: 4261170317,
    None: 634125391,
    ("a", 1): 3127077433,
}


@dataclass(frozen=True)
class Order:
    user: str
    item: int


def routed(grouping, values, count):
    found = grouping.route(values, count, 0)
    return list(zip(found.indices.tolist(), found.tasks, strict=True)), found.failures


def test_one_task_or_several_are_chosen():
    assert routed(global_(), "ab", 4) == ([(0, 0), (1, 0)], {})
    chosen = {"one": 2, "some": [0, 2], "numpy": np.int32(1), "set": {1}}
    found = routed(custom(lambda value, count: chosen[value]), list(chosen), 3)
    assert found == ([(0, 2), (1, 0), (1, 2), (2, 1), (3, 1)], {})
    assert all(type(task) is int for _place, task in found[0])


@pytest.mark.parametrize("choice", [3, -1, [0, 3], "x", [1.0], (), None], ids=str)
def test_invalid_choice_fails_its_value_alone(choice):
    found, failures = routed(custom(lambda value, count: choice if value else 1), [0, 1, 0], 3)
    assert found == [(0, 1), (2, 1)]
    assert isinstance(failures[1], BoltError)
    assert "expected some of 0 to 2" in str(failures[1])


@pytest.mark.parametrize("value", [{"item": 1}, Order, None])
def test_value_without_the_field_fails_alone(value):
    found, failures = routed(fields("user"), [{"user": 1}, value], 1)
    assert found == [(0, 0)]
    kind = type(value).__name__
    assert str(failures[1]) == f"{kind} lacks the field 'user', which groups or orders values"


@pytest.mark.parametrize("key", [object(), {1, 2}, 2**64, {3: 4}])
def test_key_that_json_cannot_encode_fails(key):
    found, failures = routed(fields("k"), [{"k": key}], 2)
    assert found == []
    assert "expected bytes or JSON values" in str(failures[0])


def test_a_key_of_several_fields_is_the_tuple():
    assert key_of({"a": 1, "b": 2}, ["b", "a"]) == (2, 1)
    assert key_of(Order("ann", 3), ["user"]) == "ann"


def test_hash_never_changes_in_any_process():
    """State that is split by it would go elsewhere. Text and the same bytes are two keys."""
    code = f"from headrace import stable_hash; print([stable_hash(v) for v in {list(VECTORS)!r}])"
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, timeout=seconds(60),
            env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.strip() == str(list(VECTORS.values()))


@pytest.mark.parametrize("tasks", [2, 3, 16])
@pytest.mark.parametrize("make", [str, int, lambda n: f"user-{n:08}", lambda n: str(n).encode()])
def test_keys_spread_evenly_over_the_tasks(make, tasks):
    count = 8_000
    found = Counter(stable_hash(make(n)) % tasks for n in range(count))
    fair = count / tasks
    assert len(found) == tasks
    assert all(0.85 * fair < number < 1.15 * fair for number in found.values())
