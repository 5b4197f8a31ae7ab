"""Partitions that leave for another replica while advanced bolts keep tuples of them."""

import math

import pytest

from headrace import AdvancedBolt, bolt
from partition.records import Partition
from tests.support.pipeline import Works

HERE, THERE = Partition("t", 0), Partition("t", 1)


@bolt
def text(record):
    return record.value.decode()


class Keep(AdvancedBolt):
    """Keeps what it gets, and answers when it is drained."""

    def open(self):
        self.kept = []
        self.drained = 0

    def process(self, tuple_, collector, /):
        self.kept.append(tuple_)

    def drain(self, collector, /):
        self.drained += 1
        for each in self.kept:
            collector.emit(each.value, anchors=each)
            collector.ack(each)
        self.kept = []


class Pairs(AdvancedBolt):
    """Joins each two tuples."""

    def open(self):
        self.kept = []

    def process(self, tuple_, collector, /):
        self.kept.append(tuple_)
        if len(self.kept) == 2:
            collector.emit("+".join(sorted(each.value for each in self.kept)), anchors=self.kept)
            for each in self.kept:
                collector.ack(each)
            self.kept = []


def want(works, *partitions):
    works.reader.assignment.want(partitions, planned_at=0.0, leave_by=math.inf)


def sharing(*bolts):
    works = Works(text, *bolts, partitions=2, shared=True)
    want(works, HERE, THERE)
    return works


@pytest.mark.parametrize("bolts", [(Keep,), (Pairs, Keep)], ids=["tuples", "joint tuples"])
def test_what_is_kept_of_a_partition_that_leaves_is_drained(bolts):
    with sharing(*bolts) as works:
        works.send(b"a", b"b")
        works.until(lambda: works.ledger.pending == 2)
        works.turn(5)
        assert works.sink.rows == []
        want(works, THERE)
        works.until(lambda: works.reader.assignment.holds == {THERE})
        assert works.sink.rows == (["a", "b"] if len(bolts) == 1 else ["a+b"])
        assert works.stored == 2
        assert works.reader.assignment.departed.given_up == 0


def test_what_is_kept_of_partitions_that_stay_is_not_asked_for():
    keep = Keep()
    with sharing(keep) as works:
        works.send(b"a", partition=1)
        works.until(lambda: works.pipeline.acker.in_flight == 1)
        want(works, THERE)
        works.until(lambda: works.reader.assignment.holds == {THERE})
        works.turn(5)
        assert (keep.drained, works.sink.rows) == (0, [])
