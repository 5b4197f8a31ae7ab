"""Runs a tape and prints what follows from each event, for people."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.errors import Violation
from tests.simulation.healing import heal
from tests.simulation.tape import quiet
from tests.simulation.world import Event, World


def trace(seed: int, tape: Sequence[Event], say: Callable[[str], None] = print) -> None:
    """Print events, situations, emissions, notices and stored offsets, and how it ends."""
    with quiet(seed) as files:
        world = World(seed, files)
        _listen(world, say)
        say(str(world.settings))
        try:
            world.start()
            for place, event in enumerate(tape):
                say(f"{place:5} {json.dumps(event)}  {_lives(world)}")
                world.step(event)
            say("all heals")
            heal(world)
        except Violation as error:
            say(f"after step {world.steps}: {error}")
        else:
            say(f"clean after step {world.steps}")


def _lives(world: World) -> str:
    return " ".join(life.name + (" (paused)" if life.frozen else "") for life in world.lives)


def _listen(world: World, say: Callable[[str], None]) -> None:
    def also(owner: Any, name: str, line: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def both(*args: Any, **named: Any) -> Any:
            say(f"      {line(*args)}")
            return original(*args, **named)

        setattr(owner, name, both)

    also(world.zookeeper, "written", _write)
    also(world.oracle, "emitted", lambda life, try_, _: f"{life.name} emits {try_.record}")
    also(world.oracle, "declared", str)
    seen = world.situations
    world.situations = type(seen)()
    for owner in (world.sink, world.letters):
        also(owner, "seen", str)
    also(world, "seen", str)
    also(world.network, "_seen", str)


def _write(sender: Any, path: str, _before: bytes | None, after: bytes | None) -> str:
    who = "the operator" if sender is None else sender.name
    return f"{who} writes {path}: {'nothing' if after is None else after.decode(errors='replace')}"
