"""Who plays which row of the fault matrix: Kafka, and the dead letters."""

from tests.faults.row import Row

_OUTAGES = "tests/acceptance/test_outages.py"
_LEADERS = "tests/integration/faults/test_kafka_faults_leaders.py"
_RECORDS = "tests/integration/faults/test_kafka_faults_records.py"
_TOPICS = "tests/integration/faults/test_kafka_faults_topics.py"
_CONTRACT = "tests/contract"
_LETTERS = "tests/integration/sinks/test_kafka_dead_letters.py"

KAFKA = {
    "K01": Row(
        "a broker restarts: the run goes on where it was, and is not ready meanwhile",
        "/health/ready 503 with Kafka away",
        (
            f"{_OUTAGES}::test_a_broker_stopped_frozen_or_killed_only_pauses_the_run",
            f"{_CONTRACT}/test_fetcher_outages.py::test_a_broker_that_is_away_gives_nothing_and_raises_nothing",
        ),
    ),
    "K02": Row(
        "a broker stands still and keeps its connections: noticed, though the client says nothing",
        "/health/ready 503 with Kafka away",
        (
            f"{_OUTAGES}::test_a_broker_stopped_frozen_or_killed_only_pauses_the_run",
            f"{_CONTRACT}/test_fetcher_outages.py::test_a_frozen_broker_is_noticed_though_the_client_says_nothing",
        ),
    ),
    "K03": Row(
        "a leader moves, in order or because its broker died: nothing is lost or repeated, and the "
        "new leader's epoch is stored",
        "leader_epoch in the offset's node",
        (
            f"{_LEADERS}::test_a_leader_that_dies_again_and_again_costs_no_record_and_repeats_none",
            f"{_LEADERS}::test_a_leader_moved_in_order_is_followed_without_an_outage",
        ),
    ),
    "K04": Row(
        "an unclean leader lacks records that were read: the partition halts, and by policy they "
        "are passed with a notice",
        "partition_halted, source_lost_records",
        (
            f"{_LEADERS}::test_what_an_unclean_leader_has_lost_halts_the_partition_and_is_told_before_it_is_passed",
            f"{_CONTRACT}/test_fetcher_losses.py::test_a_log_that_was_cut_off_is_told_by_the_leader_epoch",
        ),
    ),
    "K05": Row(
        "a topic is deleted: its partitions wait, all others go on",
        "discovery_failed; /health/ready 503 that names the topic",
        (
            f"{_TOPICS}::test_a_deleted_topic_makes_the_service_unready_and_stops_no_other",
            f"{_CONTRACT}/test_fetcher_losses.py::test_a_topic_deleted_while_it_is_read_is_named",
        ),
    ),
    "K06": Row(
        "a topic is made again: another one, however many records it holds; halted but for policy",
        "partition_halted with both ids",
        (
            f"{_TOPICS}::test_a_topic_made_again_under_a_reader_halts_until_policy_says_read_it",
            f"{_TOPICS}::test_a_service_whose_only_topic_was_made_again_ends_and_says_why",
            "tests/integration/service/test_losses.py::test_a_topic_created_again_is_another_one_however_many_records_it_holds",
        ),
    ),
    "K07": Row(
        "partitions are added: read from their beginning",
        "partition_started",
        (
            f"{_TOPICS}::test_added_partitions_are_read_from_their_beginning_also_by_who_starts_at_the_end",
        ),
    ),
    "K08": Row(
        "compaction, markers and aborted transactions: the lag reaches 0",
        "lag in the metrics and the account",
        (
            f"{_RECORDS}::test_markers_and_what_was_aborted_leave_no_lag_behind",
            f"{_RECORDS}::test_the_holes_of_a_compacted_log_leave_no_lag_behind",
        ),
    ),
    "K09": Row(
        "retention takes records that were not read: halted, or passed by policy and counted",
        "partition_halted, source_lost_records",
        (
            f"{_TOPICS}::test_records_that_retention_takes_from_under_a_reader_are_never_passed_in_silence",
            "tests/integration/service/test_losses.py::test_expired_records_halt_their_partition_and_are_skipped_only_by_policy",
        ),
    ),
    "K10": Row(
        "a record's bytes were changed on the broker's disk: its partition halts until an operator "
        "passes it",
        "partition_halted",
        (
            f"{_RECORDS}::test_a_corrupt_record_halts_its_partition_until_an_operator_lets_it_be_passed",
        ),
    ),
    "K11": Row(
        "a record is larger than the limit: a dead letter that refers to it",
        "the letter's headers",
        (f"{_RECORDS}::test_a_record_that_is_too_large_becomes_a_letter_that_refers_to_it",),
    ),
    "K12": Row(
        "null values, null keys, empty values: by policy, delivered, delivered",
        "filtered and dead letters in the account",
        (
            f"{_RECORDS}::test_null_values_go_where_policy_says_and_null_keys_and_empty_values_are_delivered",
        ),
    ),
    "K14": Row(
        "the client delivers records again, or of a partition that is not ours: dropped",
        "none: nothing comes of it",
        (
            f"{_CONTRACT}/test_fetcher.py::test_what_was_fetched_for_a_removed_partition_is_never_delivered",
            f"{_CONTRACT}/test_fetcher_events.py::test_runs_of_one_partition_become_one_chunk_and_stale_records_are_dropped",
        ),
    ),
}
LETTERS = {
    "D01": Row(
        "the dead letters' broker is away: no offset passes a record whose letter is not durable",
        "letters pending",
        (f"{_LETTERS}::test_letters_pend_while_the_broker_is_away_and_arrive_when_it_is_back",),
    ),
    "D02": Row(
        "more of the newest records are bad than allowed: the run ends, nothing is lost",
        "exit code 1 with the counts",
        (
            "tests/unit/service/test_letter_limit.py::test_more_than_the_part_that_is_allowed_ends_the_run",
        ),
    ),
    "D03": Row(
        "a letter is too large for its topic: it goes as a reference",
        "the letter's headers",
        (f"{_LETTERS}::test_a_letter_too_large_for_the_topic_is_sent_as_a_reference",),
    ),
}
ROWS = KAFKA | LETTERS
