"""Members that follow plans never work on the same partition, whatever happens to whom.

Nor on two that go together: co-partitioned topics' of one number.

A seeded world: leaders that come and go, members that read plans late and skip some, that drain
for a while, crash, lose their session, come back under their name, and are drained by operators.
A process whose name another has taken is no member any more: the epochs fence it, not the plan.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from partition.records import Partition
from partition.replicas import balance as plans
from partition.replicas.balance import SINGLY, Control, Copartitions, Member, Note, leader_of

NAMES = "abcd"
STEPS = 1000
TOGETHER = Copartitions(lambda topic: None if topic == "alone" else 0)
ROUNDS = 12
DOINGS = ["send_report", "deliver_report", "hear_who_leads", "read", "open", "open", "release"]
DOINGS += ["lead"] * 7
NOTE = Note("operator", "a test", 0)


class Broken(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """How plans are made and written; broken ones must be noticed."""

    next_plan: object = None  # the product's own
    sees_other_plans: bool = True  # a plan is written over the one it follows, and no other
    sees_registrations: bool = True  # and not if somebody registered meanwhile


@dataclass
class Look:
    """What a leader has read so far of what it needs to make a plan."""

    follows: int
    registrations: int
    control: Control
    names: list
    found: list = field(default_factory=list)


class Replica:
    """A process. `place` is that of the newest plan it has read; None: it is not registered."""

    def __init__(self, name, process):
        self.name, self.process = name, process
        self.place = self.given = self.report = self.look = None
        self.seen = 0
        self.leads = False
        self.works, self.drains, self.lost = set(), set(), set()

    @property
    def holds(self):
        return frozenset(self.works | self.drains | self.lost)

    def apply(self, plan):
        self.seen = plan.number
        self.given = plan.of(self.name)
        self.drains |= self.works - self.given
        self.works = (self.works | self.lost) & self.given
        self.lost = set()

    def lose_session(self):
        """Give up by our own clock, before others can know."""
        self.lost = set(self.holds)
        self.works, self.drains = set(), set()
        self.place = self.given = self.report = self.look = None
        self.leads = False


class World:
    """The topics of a pipeline, and the replicas that share them.

    In every second world the topics but "alone" are co-partitioned.
    """

    def __init__(self, seed, rules, topics=("s", "t", "alone"), numbers=4):
        self.rng = random.Random(seed)
        self.rules = rules
        self.every = [Partition(topic, number) for topic in topics for number in range(numbers)]
        self.copartitions = (TOGETHER, SINGLY, TOGETHER, Copartitions(all_to_one=True))[seed % 4]
        self.replicas, self.nodes = [], {}
        self.history = [None]  # of plans
        self.registrations = self.processes = 0
        self.partitions = set(self.every[: 2 * len(self.every) // 3])
        self.control = Control()
        for name in NAMES[:3]:
            self.start(name)

    # What members do

    def members(self):
        """Return the processes that are registered, by their own knowledge and the nodes'."""
        named = {each.name: each.process for each in self.nodes.values()}
        return [
            each
            for each in self.replicas
            if each.place is not None and named.get(each.name) == str(each.process)
        ]

    def register(self, replica):
        self.registrations += 1
        told = (replica.name, str(replica.process), self.registrations, replica.seen)
        self.nodes[replica.name] = Member(*told, replica.holds)
        replica.place = len(self.history) - 1

    def send_report(self, replica):
        replica.report = replica.report or (replica.seen, replica.holds)

    def deliver_report(self, replica):
        if replica not in self.members():
            self.replicas.remove(replica)  # another runs under its name
        elif replica.report is not None:
            seen, holds = replica.report
            node = self.nodes[replica.name]
            self.nodes[replica.name] = replace(node, seen=seen, holds=holds)
            replica.report = None

    def hear_who_leads(self, replica):
        replica.leads = leader_of(self.nodes.values()) == self.nodes.get(replica.name)

    def read(self, replica, *, newest=False):
        last = len(self.history) - 1
        replica.place = last if newest else self.rng.randint(replica.place, last)
        if self.history[replica.place] is not None:
            replica.apply(self.history[replica.place])

    def open(self, replica):
        free = sorted((replica.given or frozenset()) - replica.holds)
        if free:
            replica.works.add(self.rng.choice(free))

    def release(self, replica):
        if replica.drains:
            replica.drains.remove(self.rng.choice(sorted(replica.drains)))

    def lead(self, replica):
        look = replica.look
        if not replica.leads:
            return
        if look is None:
            names = self.rng.sample(sorted(self.nodes), len(self.nodes))
            replica.look = Look(len(self.history) - 1, self.registrations, self.control, names)
        elif look.names:
            node = self.nodes.get(look.names.pop())
            look.found += [node] if node else []
        else:
            replica.look = None
            self.write(look)

    def write(self, look):
        was = self.history[look.follows]
        given = was, look.found, set(self.partitions), look.control, self.copartitions
        plan = (self.rules.next_plan or plans.next_plan)(*given)
        if plan is None:
            return
        if self.rules.sees_other_plans and look.follows != len(self.history) - 1:
            return
        if self.rules.sees_registrations and look.registrations != self.registrations:
            return
        if plan.owners.keys() & plan.leaving.keys():
            raise Broken("a partition is owned and leaving")
        self.history.append(plan)

    # What befalls them

    def start(self, name):
        self.processes += 1
        self.replicas.append(Replica(name, self.processes))

    def expire(self):
        """End a session whose process is gone, or has given up."""
        live = {str(each.process) for each in self.replicas if each.place is not None}
        over = sorted(name for name, node in self.nodes.items() if node.process not in live)
        if over:
            del self.nodes[self.rng.choice(over)]
        return over

    def befall(self):
        rng, name = self.rng, self.rng.choice(NAMES)
        kind = rng.choice(["start", "crash", "lose", "expire", "expire", "operate", "topics"])
        if kind == "start" and len(self.replicas) <= len(NAMES):
            self.start(name)
        elif kind == "crash" and self.replicas:
            self.replicas.remove(rng.choice(self.replicas))
            if rng.random() < 0.3:
                self.start(name)
        elif kind == "lose" and self.replicas:
            rng.choice(self.replicas).lose_session()
        elif kind == "expire" and (over := self.expire()) and rng.random() < 0.5:
            self.start(over[0])
        elif kind == "operate":
            drained = dict(self.control.drained)
            if drained.pop(name, None) is None:
                drained[name] = NOTE
            more = rng.randint(0, 1)
            self.control = Control(None, drained, self.control.rebalance + more)
        elif kind == "topics":
            self.partitions ^= {rng.choice(self.every)}

    def step(self):
        if self.rng.random() < 0.03:
            self.befall()
        if self.replicas:
            replica = self.rng.choice(self.replicas)
            if replica.place is None:
                self.register(replica)
            else:
                getattr(self, self.rng.choice(DOINGS))(replica)
        self.check()

    def check(self):
        who = [
            (self.copartitions.unit_of(p), one.process, p)
            for one in self.members()
            for p in one.works | one.drains
        ]
        workers = {}
        for unit, process, _ in who:
            workers.setdefault(unit, set()).add(process)
        twice = sorted(str(p) for unit, _, p in who if len(workers[unit]) > 1)
        if twice:
            raise Broken(f"two members work on {twice}")

    # And when nothing befalls them any more

    def settle(self):
        known = self.members()
        self.replicas = [each for each in self.replicas if each.place is None or each in known]
        if not self.replicas:
            self.start("a")
        if {each.name for each in self.replicas} <= self.control.drained.keys():
            self.control = replace(self.control, drained={})
        for _ in self.nodes.copy():
            self.expire()
        for _ in range(ROUNDS):
            plans = len(self.history)
            for replica in list(self.replicas):
                self.take_turn(replica)
            if plans == len(self.history) and self.is_settled():
                return
        raise Broken(f"not settled after {ROUNDS} rounds: {self.history[-1]}")

    def take_turn(self, replica):
        if replica.place is None:
            self.register(replica)
        replica.report = None
        self.send_report(replica)
        self.deliver_report(replica)
        if replica not in self.replicas:
            return
        replica.look = None
        self.hear_who_leads(replica)
        for _ in range(len(self.nodes) + 2):
            self.lead(replica)
            self.check()
        self.read(replica, newest=True)
        for _ in self.every:
            self.open(replica)
            self.release(replica)
            self.check()

    def is_settled(self):
        plan = self.history[-1]
        if plan is None:  # there may have been no partition ever
            return not self.partitions
        if plan.leaving or plan.owners.keys() != self.partitions:
            return False
        if any(each.works != plan.of(each.name) or each.drains for each in self.replicas):
            return False
        able = [each.name for each in self.replicas if each.name not in self.control.drained]
        if self.copartitions.all_to_one:
            return max(len(plan.of(name)) for name in able) == len(self.partitions)
        return self.are_together(plan) and self.are_even(plan, able)

    def are_together(self, plan):
        units = self.copartitions.units(self.partitions)
        return all(len({plan.owners[each] for each in unit}) == 1 for unit in units)

    def are_even(self, plan, able):
        """Of what has as many partitions every member has as much, or one more."""
        dealt = Counter(
            (len(unit), plan.owners[unit[0]]) for unit in self.copartitions.units(self.partitions)
        )
        for size in {size for size, _ in dealt}:
            counts = [dealt[size, name] for name in able]
            if max(counts) - min(counts) > 1:
                return False
        return True


def live(seed, rules=Rules(), **topics):
    """Let a world go on, and then settle. Raises Broken, which says the seed."""
    world = World(seed, rules, **topics)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
    except Broken as broken:
        raise Broken(f"seed {seed}: {broken}") from broken
    return world
