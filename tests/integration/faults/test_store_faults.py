"""S13: each fault of an object store at each request of a transaction; 0 rows lost, 0 twice.

A proxy before SeaweedFS has the faults; what is there is read past it.
"""

import contextlib
import functools
import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import copy_files

from tests.support.lake import NAME, SINKS, Owner, behind_proxies, rows_to
from tests.support.near_a_store import Answer, Ask, Asked, Fault, pass_on
from tests.support.patience import Limit, seconds, until
from tests.support.seaweed import KEY_ID, NEW_KEY_ID, NEW_SECRET, SECRET, EmbeddedSeaweed
from tests.support.store_faults import ONCE, error, weather
from topology.errors import SinkFailed, SinkFenced

_NUMBERS = re.compile(r"[0-9a-f-]{6,}|[0-9]")
RIVAL, RIVAL_BASE = "orders[1]", 1_000_000
KINDS = [*SINKS, "iceberg-rest"]


class Scene:
    """A table behind proxies, its owner, and a rival who commits past them for another line."""

    def __init__(self, kind: str, seaweed: EmbeddedSeaweed, folder: Path, stack: ExitStack) -> None:
        self._keys = folder / "key-id", folder / "secret"
        self.renew(KEY_ID, SECRET)
        self.lake, self.proxies = behind_proxies(kind, seaweed, folder, stack)
        if kind != "iceberg-rest":
            names = ("access_key_id", "secret_access_key")
            files = dict(zip(names, map(str, self._keys), strict=True))
            storage = replace(self.lake.storage, secrets={}, secret_files=files)
            self.lake = replace(self.lake, storage=storage)
        self.direct = replace(self.lake, storage=self.lake.direct)
        self.owner = Owner(self.lake)
        self.rival = Owner(self.direct, line=RIVAL, base=RIVAL_BASE)
        self.owner.fence()
        self.rival.fence()
        self._lock, self._rivals = threading.Lock(), threading.Lock()
        self._is_ill = False
        self._late: list[Ask] = []

    def renew(self, key_id: str, secret: str) -> None:
        for path, text in zip(self._keys, (key_id, secret), strict=True):
            path.write_text(text)

    def arm(self, fault: Fault, at: int, *, lasts: bool = False) -> Callable[[], int]:
        """Meet the request of this number, and all after it if it `lasts`, until it is healed.

        Requests for files of one kind, one after the other, count once: each commit reads the
        whole log. What is returned tells how many requests there were.
        """
        count, last = 0, ("", "")

        def meet(asked: Asked, ask: Ask) -> Answer | None:
            nonlocal count, last
            with self._lock:
                kind = (asked.method, _NUMBERS.sub("", asked.path))
                is_new, last = kind != last, kind
                count += is_new
                is_met = is_new and count == at
                self._is_ill = self._is_ill or is_met
                late, self._late = self._late, []
            for each in late:
                each()
            return fault(asked, ask) if is_met or (lasts and self._is_ill) else ask()

        for proxy in self.proxies[: 1 if lasts else None]:  # what lasts is of the store alone
            proxy.fault = meet
        return lambda: count

    def heal(self) -> None:
        self._is_ill = False
        for proxy in self.proxies:
            proxy.fault = pass_on

    def is_late(self, _: Asked, ask: Ask) -> None:
        """Lose the connection; the request comes to the store before the next one."""
        self._late.append(ask)

    def races(self, _: Asked, ask: Ask) -> Answer:
        with self._rivals:
            self.rival.commit()
        return ask()

    def check(self) -> None:
        """See that every row of both lines is there once."""
        with self._rivals:  # whose commit may outlast the request that it came before
            wanted = rows_to(self.owner.txid) + rows_to(self.rival.txid, RIVAL_BASE)
            assert self.direct.numbers() == wanted


FAULTS = [*ONCE, "late", "race"]
LASTING: Mapping[str, Fault] = {
    "no-bucket": lambda asked, _: error(404, "NoSuchBucket", asked),
    "skew": lambda asked, _: error(403, "RequestTimeTooSkewed", asked),
    "denied": lambda asked, _: error(403, "AccessDenied", asked),
}


@pytest.fixture
def make(seaweed, tmp_path):
    with ExitStack() as stack:
        yield lambda kind: Scene(kind, seaweed, tmp_path, stack)


def once(scene: Scene, name: str) -> Fault:
    return {**ONCE, "late": scene.is_late, "race": scene.races}[name]


def carry_out(scene: Scene, on_error: Callable[[], object] = lambda: None) -> None:
    """Stage and commit the owner's next transaction, each until it is done, as the writer does."""
    limit = Limit(seconds(120))

    def until_done(work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except (SinkFailed, SinkFenced):
                raise
            except Exception:
                if limit.passed:
                    raise
                on_error()

    staged = until_done(scene.owner.stage)
    until_done(functools.partial(scene.owner.commit, staged))


def play(scene: Scene, name: str, at: int) -> bool:
    """Have a transaction meet a fault at one of its requests; whether it had so many."""
    asked = scene.arm(once(scene, name), at)
    carry_out(scene)
    scene.heal()
    scene.check()
    return asked() >= at


def play_lasting(scene: Scene, fault: Fault, at: int) -> bool:
    asked = scene.arm(fault, at, lasts=True)
    carry_out(scene, scene.heal)
    scene.heal()
    scene.check()
    return asked() >= at


def at_every_request(play: Callable[[int], bool]) -> int:
    """Play it at the first request, the second and so on; how many there are."""
    return next(at - 1 for at in itertools.count(1) if not play(at))


@pytest.mark.integration
def test_drawn_requests_meet_drawn_faults(make):
    """Promises 3 and 14; others every day. What they were is printed."""
    rng = random.Random(f"{datetime.now(UTC):%Y-%m-%d}")
    for kind in ("delta", "iceberg"):
        scene = make(kind)
        for name in rng.sample(FAULTS, 3):
            at = rng.randint(1, 12)
            print(kind, name, at)  # noqa: T201
            play(scene, name, at)


@pytest.mark.faults
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_request_may_meet_a_fault(kind, name, make):
    """Promises 3 and 14."""
    scene = make(kind)
    assert at_every_request(functools.partial(play, scene, name)) > 3


@pytest.mark.faults
@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("kind", ["delta", "iceberg-rest"])
def test_each_request_of_a_start_may_meet_a_fault(kind, name, make):
    """A reply that is lost once ends no service."""
    scene = make(kind)

    def play_start(at: int) -> bool:
        asked = scene.arm(ONCE[name], at)
        scene.lake.sink().close()
        scene.heal()
        return asked() >= at

    assert at_every_request(play_start) > 1


@pytest.mark.faults
@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("kind", KINDS)
def test_store_may_refuse_from_each_request_on(kind, name, make):
    """Promise 15: until the sink has failed once."""
    scene = make(kind)
    assert at_every_request(functools.partial(play_lasting, scene, LASTING[name])) >= 3


@pytest.mark.faults
@pytest.mark.parametrize("kind", SINKS)
def test_expired_key_is_renewed_from_its_file_at_each_request(kind, make):
    """Promise 15: the file changes amid the transaction, and the store refuses the old key."""
    scene = make(kind)
    keys = itertools.cycle([(NEW_KEY_ID, NEW_SECRET), (KEY_ID, SECRET)])

    def play_expired(at: int) -> bool:
        new = next(keys)

        def is_expired(asked: Asked, ask: Ask) -> Answer:
            is_new = f"Credential={new[0]}/" in asked.headers.get("authorization", "")
            return ask() if is_new else error(403, "ExpiredToken", asked)

        asked = scene.arm(is_expired, at, lasts=True)
        carry_out(scene, lambda: scene.renew(*new))
        scene.heal()
        scene.renew(*new)
        scene.check()
        return asked() >= at

    assert at_every_request(play_expired) > 3


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_zombie_held_at_each_request_is_fenced(kind, make):
    """Promise 9: its request comes to the store when its successor has committed."""
    scene = make(kind)
    epochs = itertools.count(2)

    def play_zombie(at: int) -> bool:
        zombie, txid = scene.owner, scene.owner.txid + 1
        staged = zombie.stage()
        held, goes_on = threading.Event(), threading.Event()

        def hold(_: Asked, ask: Ask) -> Answer:
            held.set()
            goes_on.wait(seconds(60))
            return ask()

        asked = scene.arm(hold, at)
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(zombie.commit, staged)
            until("it is held", lambda: held.is_set() or commit.done())
            scene.heal()
            successor = Owner(scene.direct, epoch=next(epochs))
            if successor.fence() < txid:
                successor.commit()
            goes_on.set()
            with contextlib.suppress(SinkFenced):  # unless it had landed
                commit.result(seconds(60))
        scene.owner = Owner(scene.lake, epoch=next(epochs))
        assert scene.owner.fence() == txid
        scene.check()
        return asked() >= at

    assert at_every_request(play_zombie) >= 3


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_slow_store_loses_nothing(kind, make):
    """200 ms for each request, as from another continent."""
    scene = make(kind)

    def wait(_: Asked, ask: Ask) -> Answer:
        time.sleep(0.2)
        return ask()

    scene.arm(wait, 1, lasts=True)
    for _ in range(3):
        carry_out(scene)
    scene.heal()
    scene.check()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["delta", "upserts"])
def test_spark_reads_the_same_after_bad_weather(kind, make, spark, tmp_path):
    """Spark has no jars for S3 here, so it reads a copy of the table's folder."""
    scene = make(kind)
    for proxy in scene.proxies:
        proxy.fault = weather("1", 0.1)
    for _ in range(20):
        carry_out(scene)
    scene.check()
    storage = scene.direct.direct
    files, root = storage.filesystem(storage.uri(NAME))
    copy_files(root, str(tmp_path / "copy"), source_filesystem=files)

    def read(session: Any) -> list[int]:
        frame = session.read.format("delta").load(str(tmp_path / "copy"))
        return frame.toArrow()["number"].to_pylist()

    assert Counter(spark.run(read, group="read")) == rows_to(scene.owner.txid)
