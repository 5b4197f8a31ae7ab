"""What can go wrong when an operator looks after dead letters."""

from service.errors import ServiceError


class NoLetterTopic(ServiceError):
    """The topology's dead letters go to no Kafka topic."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the topology's dead letters go into a {kind}; these commands need a "
            "KafkaDeadLetters, whose topic can be read from outside"
        )


class NoSuchLetter(ServiceError):
    """At a place that was named there is no letter; nothing was done."""

    def __init__(self, place: object, found: str) -> None:
        super().__init__(f"there is no letter at {place}: {found}; nothing was done")


class NotDealtWith(ServiceError):
    """Some letters were refused, or could not be sent again or marked."""

    def __init__(self, what: str, not_done: int, letters: int, done: int, reason: str) -> None:
        """`reason` is the first one's."""
        super().__init__(f"{not_done} of {letters} letters were not {what}, {done} were: {reason}")


class AnotherAtWork(ServiceError):
    """Somebody else has begun to replay or drop letters of the same topic."""

    def __init__(self, topic: str, done: int) -> None:
        super().__init__(
            f"another replay or drop of letters in '{topic}' has begun and goes on instead of "
            f"this one; {done} letters were dealt with here before; list them, then go on"
        )
