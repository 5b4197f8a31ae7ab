"""Plain bolts that have an order or several tasks: called by the owner thread, at once."""

from topology.calls import failure_of
from topology.running.call import Call, TickFailed
from topology.running.calling import finish, process_of
from topology.running.runner import Duty, Runner, RunnerStatistics


class InlineRunner(Runner):
    """Calls a bolt as soon as a value comes, unless the value's key is held.

    Nothing runs beside it, so an order keeps itself; only what waits for a retry needs the lane.
    """

    def __init__(self, duty: Duty) -> None:
        super().__init__(duty)
        self._clock = duty.clock
        self._process = process_of(self._step, duty.bolt)
        self._is_closing = False

    def submit(self, calls: list[Call]) -> None:
        """Call the bolt for each whose key is free."""
        started = self._clock()
        for place, call in enumerate(calls):
            if self._lane.held or self._lane.is_suspended or self._is_closing:
                self._note(started, place)
                self._lane.add(calls[place:])  # at once: one record may have several of them
                self._go_on()
                return
            self._run(call)
            if call.comes_again:
                self._lane.add((call,))
                self._lane.take()
                self._lane.end(call)
        self._note(started, len(calls))

    def _note(self, started: float, count: int) -> None:
        """Note how long so many calls took: one look at the clock for all, each had the mean."""
        if count:
            self._took += [(self._clock() - started) / count] * count

    def backlog(self) -> int:
        """None: what could start has been called."""
        return 0

    def poll(self, now: float) -> None:
        """Nothing: a call on the owner thread cannot be cut short."""

    def tick(self) -> None:
        """Call the bolt's `tick`."""
        try:
            self._bolt.tick()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            self._tick_failed(TickFailed(self._step, failure_of(self._step, error)))

    def statistics(self) -> RunnerStatistics:
        """Figures of this moment."""
        return RunnerStatistics(waiting=self.num_waiting, held=self._lane.held)

    def close(self, deadline: float) -> None:  # noqa: ARG002
        """Take no more calls: what waits comes again after the next start."""
        self._is_closing = True

    def _go_on(self) -> None:
        while not self._is_closing and (call := self._lane.take()) is not None:
            started = self._clock()
            self._run(call)
            self._note(started, 1)
            self._lane.end(call)

    def _run(self, call: Call) -> None:
        try:
            value = self._process(call.value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            call.error = failure_of(self._step, error)
        else:
            finish(self._step, call, value)
        self._answers.add(call)
