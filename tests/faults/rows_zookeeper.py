"""Who plays which row of the fault matrix: ZooKeeper."""

from tests.faults.row import Row

_STORE = "tests/contract/test_offset_store.py"
_OWNERSHIP = "tests/contract/test_offset_ownership.py"
_REAL = "tests/contract/test_zookeeper_store.py"
_SECURITY = "tests/integration/partition/test_zookeeper_security.py"
_SLOW = "tests/integration/faults/test_zookeeper_faults_slow.py"
_READ_ONLY = "tests/integration/faults/test_zookeeper_faults_read_only.py"
_ROLLBACK = "tests/integration/faults/test_zookeeper_faults_rollback.py"
_NODES = "tests/unit/partition/test_nodes.py"
_OUTAGES = "tests/acceptance/test_outages.py"

ROWS = {
    "Z01": Row(
        "not there at the start: named within the deadline, and opened once it is there",
        "an error that names the hosts; exit code 1 of `check`",
        (
            f"{_REAL}::test_a_server_that_is_not_there_is_named_within_the_deadline",
            f"{_REAL}::test_a_store_opens_again_after_it_could_not",
            "tests/integration/service/test_cli.py::test_check_of_servers_that_are_down_ends_soon_and_names_them",
        ),
    ),
    "Z02": Row(
        "stopped, frozen or killed under a run: records are processed within the window, and "
        "stored when it is back",
        "/health/ready 503; the age of the last commit",
        (
            f"{_OUTAGES}::test_zookeeper_stopped_frozen_or_killed_only_pauses_the_commits",
            f"{_STORE}::test_everything_waits_for_the_server_to_come_back",
        ),
    ),
    "Z03": Row(
        "slow answers: the loop turns, one commit takes all that has moved meanwhile; a connection "
        "that breaks amid them repeats nothing",
        "headrace_service_commit_seconds; ready all the while",
        (
            f"{_SLOW}::test_a_slow_server_delays_offsets_and_blocks_nothing",
            f"{_SLOW}::test_a_connection_cut_amid_slow_answers_repeats_no_row_and_loses_none",
        ),
    ),
    "Z04": Row(
        "no answer for two thirds of the session, by our own clock: with others about nothing more "
        "is emitted or stored",
        "ownership_suspended",
        (
            "tests/unit/service/test_membership.py::test_without_an_answer_everything_is_suspended_by_our_own_clock_once",
            "tests/acceptance/test_replicas.py::test_a_replica_that_stood_still_past_its_session_does_no_harm_and_comes_back",
        ),
    ),
    "Z05": Row(
        "the session expires: every ownership ends with it, and nothing of it is stored later",
        "zookeeper_session_ended",
        (
            f"{_OWNERSHIP}::test_a_session_that_ends_takes_every_ownership_with_it",
            f"{_REAL}::test_a_write_is_not_replayed_in_a_new_session",
            f"{_REAL}::test_a_session_that_ends_while_nothing_is_asked_is_noticed",
        ),
    ),
    "Z06": Row(
        "a node is deleted: its partition halts, and never begins anew by itself",
        "partition_halted",
        (
            f"{_STORE}::test_a_node_is_missing_where_one_was",
            f"{_OWNERSHIP}::test_a_node_deleted_and_made_anew_is_not_the_zombies",
        ),
    ),
    "Z07": Row(
        "a node holds what cannot be read, or what a later version wrote: refused, left as it is",
        "partition_halted",
        (
            f"{_STORE}::test_corrupt_is_not_absent",
            f"{_OWNERSHIP}::test_an_owner_whose_node_becomes_unreadable_stops",
            "tests/contract/test_later_versions.py::test_what_a_later_version_wrote_stops_its_partition_and_stays_as_it_is",
        ),
    ),
    "Z08": Row(
        "access is denied: an error, and never taken for no offset",
        "an error that names the node",
        (
            f"{_SECURITY}::test_without_the_right_to_read_an_offset_is_refused_and_not_absent",
            f"{_SECURITY}::test_credentials_that_are_refused_later_end_every_wait",
        ),
    ),
    "Z09": Row(
        "one of three servers is left and takes no writes: as if none were there, until the others "
        "are back; a start ends with an error",
        "/health/ready 503: ZooKeeper is away; an error that names the hosts",
        (
            f"{_READ_ONLY}::test_a_server_that_takes_no_writes_is_as_none_until_the_others_are_back",
            f"{_READ_ONLY}::test_a_start_at_a_server_that_takes_no_writes_ends_with_an_error_and_loses_no_offset",
        ),
    ),
    "Z10": Row(
        "another wrote under the same node: fenced, and not tried again",
        "an error that names the partition, and who has it",
        (
            f"{_OWNERSHIP}::test_the_former_owner_is_fenced_by_a_claim_alone",
            f"{_OWNERSHIP}::test_a_fenced_owner_can_store_no_plan",
        ),
    ),
    "Z11": Row(
        "another topology's offset: refused, unless it is adopted",
        "an error that names both",
        (f"{_STORE}::test_an_offset_of_another_topology_is_refused_unless_it_is_adopted",),
    ),
    "Z12": Row(
        "the reply to a write is lost: it is read back, and counts if it is ours",
        "none: the commit counts as done",
        (
            f"{_REAL}::test_a_reply_lost_on_the_way_counts_as_done",
            f"{_REAL}::test_a_plan_whose_reply_is_lost_is_read_back_as_ours",
        ),
    ),
    "Z13": Row(
        "its data are lost or older than they were: exactly once the partition halts and nothing "
        "is written, at least once what came after them is repeated; a run that goes on waits",
        "partition_halted with StoreBehind, then SinkAhead; partition_started; /health/ready 503",
        (
            f"{_ROLLBACK}::test_a_run_does_not_go_on_with_a_server_that_has_lost_its_data",
            f"{_ROLLBACK}::test_exactly_once_nothing_begins_anew_where_the_sink_knows_better",
            f"{_ROLLBACK}::test_exactly_once_older_data_are_not_gone_on_with",
            f"{_ROLLBACK}::test_exactly_once_a_replica_among_others_halts_too",
            f"{_ROLLBACK}::test_at_least_once_older_data_repeat_what_came_after_them_and_lose_nothing",
            f"{_ROLLBACK}::test_at_least_once_lost_data_are_as_a_first_start_and_told_as_one",
            f"{_OWNERSHIP}::test_a_node_put_back_by_hand_is_nobodys_until_it_is_claimed",
        ),
    ),
    "Z14": Row(
        "a commit is cut into requests of at most 512 KiB; a single node larger than 1 MiB is an "
        "error and is not sent",
        "an error that names the node, its bytes and jute.maxbuffer",
        (
            f"{_NODES}::test_commit_is_cut_into_requests_of_at_most_512_kib",
            f"{_REAL}::test_what_is_larger_than_a_request_may_be_is_not_sent",
        ),
    ),
}
