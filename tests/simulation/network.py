"""Requests and replies on their way: lost, late, doubled, in any order, as the tape says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Message:
    """A request, or its reply once `execute` has been called at the server."""

    sender: object
    execute: Callable[[], Any]
    deliver: Callable[[Any], None]
    give_up: Callable[[], None]  # the sender stops waiting; a reply then comes to nobody
    answered: bool = False
    given_up: bool = False
    reply: Any = None


class Network:
    """Everything that is on its way. One event of the tape moves one message one step."""

    def __init__(self, seen: Callable[[str], None]) -> None:
        self.messages: list[Message] = []
        self.down: set[object] = set()  # senders whose requests do not get out now
        self.frozen: set[object] = set()  # senders that take no reply now
        self._seen = seen

    def send(self, message: Message) -> None:
        """Put a request on its way."""
        self.messages.append(message)

    def advance(self, which: int) -> None:
        """Carry a request out, or hand its reply over."""
        message = self._pick(which)
        if message is None or message.sender in self.down:
            return
        if not message.answered:
            message.reply = message.execute()
            message.answered = True
            if message.given_up:
                self._seen("request_carried_out_after_its_sender_gave_up")
                self.messages.remove(message)
        elif message.sender not in self.frozen:
            self.messages.remove(message)
            if not message.given_up:
                message.deliver(message.reply)

    def carry_out(self, sender: object) -> None:
        """Let what a sender has asked be done; the reply is not there yet."""
        for message in self.messages:
            if message.sender is sender and not message.answered and not message.given_up:
                message.reply, message.answered = message.execute(), True

    def lose(self, which: int) -> None:
        """Lose a request or a reply; the sender gives up."""
        message = self._pick(which)
        if message is None or message.sender in self.frozen:
            return
        self.messages.remove(message)
        if not message.given_up:
            message.give_up()

    def give_up(self, which: int) -> None:
        """Let the sender stop waiting while its request is still on its way."""
        message = self._pick(which)
        if message is None or message.given_up or message.sender in self.frozen:
            return
        message.given_up = True
        if message.answered:
            self.messages.remove(message)
        message.give_up()

    def double(self, which: int) -> None:
        """Carry a request out once more than it was sent."""
        message = self._pick(which)
        if message is not None and not message.answered:
            self.messages.append(
                Message(message.sender, message.execute, _ignore, _nothing, given_up=True)
            )

    def forget(self, sender: object) -> None:
        """Nobody waits at the sender any more; what it sent may still be carried out."""
        for message in self.messages:
            if message.sender is sender:
                message.given_up = True
        self.messages = [m for m in self.messages if not (m.sender is sender and m.answered)]

    def _pick(self, which: int) -> Message | None:
        return self.messages[which % len(self.messages)] if self.messages else None


def _ignore(_reply: Any) -> None:
    """Nobody waits for it."""


def _nothing() -> None:
    """Nobody waits for it."""
