"""Who plays which row of the fault matrix: the process, its network and its clock.

P01 to P03, kill, stop and SIGTERM at every point of a record's way, are the crash matrix.
"""

from tests.faults.row import Row

_FAULTS = "tests/integration/faults/test_process_faults"

ROWS = {
    "P04": Row(
        "no memory is left in its group: the kernel kills the process, another replica takes over, "
        "and a new start goes on exactly",
        "the process ends by SIGKILL; the group counts it (oom_kill)",
        (f"{_FAULTS}_memory.py::test_out_of_memory_ends_one_process_and_a_new_one_goes_on",),
    ),
    "P05": Row(
        "no file descriptors are left: it waits, does not spin, answers scrapes one by one, and "
        "goes on when there are some; a start with too few ends",
        "descriptors_exhausted; sink_write_failed; /health/ready says Too many open files",
        (
            f"{_FAULTS}_descriptors.py::test_without_descriptors_it_waits_says_so_and_does_not_spin",
            f"{_FAULTS}_descriptors.py::test_a_start_without_descriptors_ends_with_a_message",
        ),
    ),
    "P07": Row(
        "the wall clock jumps by a year: sessions and ownership do not notice while records come, "
        "on and back, nor retries, on; set back under quiet topics it asks for a restart",
        "the times in the log; /health/live 503 after a minute of standing still",
        (
            f"{_FAULTS}_clock.py::test_sessions_ownership_and_the_account_do_not_hang_on_the_wall_clock",
            f"{_FAULTS}_clock.py::test_retries_come_when_they_are_due_when_the_wall_clock_jumps_on",
            f"{_FAULTS}_clock.py::test_a_quiet_service_whose_clock_is_set_back_asks_for_a_restart_and_then_goes_on",
        ),
    ),
    "P08": Row(
        "cut off from ZooKeeper, both ways or one, with Kafka or without: it stops by its own "
        "clock and is taken over; cut off from Kafka alone: it waits, and keeps its partitions",
        "ownership_suspended; /health/ready 503; headrace_service_kafka_available_state 0",
        (
            f"{_FAULTS}_network.py::test_a_replica_cut_off_from_zookeeper_stops_by_its_own_clock_and_is_taken_over",
            f"{_FAULTS}_network.py::test_a_replica_cut_off_from_kafka_waits_and_says_so_and_repeats_nothing",
        ),
    ),
    "P09": Row(
        "names do not resolve: amid a run it waits for them, at the start it ends",
        "/health/ready 503; the end of the run names the hosts",
        (
            f"{_FAULTS}_names.py::test_names_that_are_forgotten_amid_a_run_only_pause_it",
            f"{_FAULTS}_names.py::test_names_that_do_not_resolve_at_the_start_end_it_with_a_message",
        ),
    ),
}
