"""Who plays which row of the fault matrix: the process, its clock and its network.

P01 to P03 are `kill -9`, SIGSTOP and SIGTERM at C01 to C18: the crash matrix.
"""

from tests.faults.row import Row

_LIMITS = "tests/integration/faults/test_process_faults_limits.py"
_NAMES = "tests/integration/faults/test_process_faults_names.py"

ROWS = {
    "P04": Row(
        "out of memory: the kernel kills it; the record that took it all stays unresolved, others "
        "may come again, and nothing is lost",
        "the exit code of SIGKILL; the stored offset stays before the record",
        (
            f"{_LIMITS}::test_a_process_that_is_out_of_memory_is_killed_and_what_was_not_stored_comes_again",
        ),
    ),
    "P05": Row(
        "out of descriptors: it works on with those it has, and answers when there are some again; "
        "with too few to start with it ends and says so",
        "log http_starved; the error of the start",
        (
            f"{_LIMITS}::test_a_process_without_descriptors_works_on_with_what_it_has",
            f"{_LIMITS}::test_too_few_descriptors_to_start_with_are_named",
        ),
    ),
    "P09": Row(
        "names that do not resolve: the run pauses and goes on; a start ends and says which",
        "/health/ready 503; log kafka_trouble, dead_letter_broker_error",
        (
            f"{_NAMES}::test_names_that_do_not_resolve_any_more_only_pause_a_run",
            f"{_NAMES}::test_names_that_do_not_resolve_at_the_start_are_told",
        ),
    ),
}
