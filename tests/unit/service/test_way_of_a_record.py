"""How much of our code one record meets on the owner thread, from its fetch to its commit."""

import sys
from pathlib import Path
from types import FrameType
from typing import TypedDict

import pytest

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test

ROOT = Path(__file__).parents[3]
COUNTED = ("acker", "partition", "topology", "transactions", "sinks", "service")
LEFT_OUT = ("service/testing/", "partition/memory/")

# Lower these with each change that lets them be lower; they never rise.
LIMITS = [("at-least-once", 28, 8), ("exactly-once", 32, 9), ("at-most-once", 28, 8)]


class Row(TypedDict):
    value: int


@bolt
def number(record: Record) -> int:
    return int(record.value or b"0")


@bolt
def doubled(value: int) -> Row:
    return {"value": 2 * value}


class Calls:
    def __init__(self):
        self.files: set[str] = set()
        self.chain: list[str] = []

    def __call__(self, frame, event, argument):
        if event != "call" or (file := counted_file(frame)) is None:
            return
        self.files.add(file)
        chain = []
        caller: FrameType | None = frame
        while caller is not None:
            file, name = counted_file(caller), caller.f_code.co_qualname
            if file is not None and not caller.f_code.co_name.startswith("<"):
                chain.append(f"{file} {name}")
            caller = caller.f_back
        if len(chain) > len(self.chain):
            self.chain = chain


def counted_file(frame):
    path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    if path.split("/")[0] not in COUNTED or path.startswith(LEFT_OUT):
        return None
    return path


@pytest.mark.parametrize(("reliability", "files", "frames"), LIMITS)
def test_a_record_meets_no_more_files_and_frames(reliability, files, frames):
    topology = Topology("numbers", reliability=reliability)
    topology.source("numbers").then(number).then(doubled).into(MemorySink("rows", schema=Row))
    topology.dead_letters.into(MemoryDeadLetters())
    calls, before = Calls(), sys.getprofile()
    with topology_test(topology) as test:
        test.send(b"1").advance(60).send(b"2").advance(60)  # what is made once is made now
        try:
            sys.setprofile(calls)
            test.send(b"3").advance(2)
        finally:
            sys.setprofile(before)
        assert test.rows == [{"value": 2}, {"value": 4}, {"value": 6}]
    assert len(calls.files) <= files, "\n".join(sorted(calls.files))
    assert len(calls.chain) <= frames, "\n".join(calls.chain)
