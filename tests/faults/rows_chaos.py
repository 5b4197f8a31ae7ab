"""Who plays the row of the fault matrix about replicas that flap."""

from tests.faults.row import Row

ROWS = {
    "R04": Row(
        "three of five replicas are killed, frozen, ended and started every half second at most: "
        "nothing is lost, exactly once is exact, and each partition gets on",
        "partition_given_up, ownership_suspended; owners in `headrace status`",
        (
            "tests/integration/faults/test_chaos.py::test_replicas_that_flap_lose_nothing_and_repeat_only_what_they_must",
        ),
    ),
}
