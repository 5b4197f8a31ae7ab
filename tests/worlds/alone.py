"""A replica that is the only one, on an offset store in memory."""

from partition.consumer import Consumer
from partition.replicas.heartbeat import Heartbeats
from partition.replicas.plan import Member
from service.membership import GroupMembership, MembershipPolicy
from tests.support.faulty_store import FaultyStore


def alone(store: FaultyStore, reader: Consumer) -> GroupMembership:
    heartbeats = Heartbeats("/headrace", "memory", Member("one", "process"))
    return GroupMembership(store, heartbeats, reader.assignment, MembershipPolicy("one"))
