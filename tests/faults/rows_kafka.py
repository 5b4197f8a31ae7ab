"""Rows K01 to K17 and D01 to D04 of the fault matrix, and the tests that play them."""

from collections.abc import Mapping

from tests.faults.row import Row

_FAULTS = "tests/integration/faults/test_kafka_faults_"
_BROKER = f"{_FAULTS}broker.py::"
_LEADERS = f"{_FAULTS}leaders.py::"
_LETTERS = f"{_FAULTS}letters.py::"
_QUOTAS = f"{_FAULTS}quotas.py::"
_RECORDS = f"{_FAULTS}records.py::"
_RIGHTS = f"{_FAULTS}rights.py::"
_TOPICS = f"{_FAULTS}topics.py::"
_TRANSACTIONS = f"{_FAULTS}transactions.py::"
_CONTRACT = "tests/contract/test_fetcher.py::"
_LOSSES = "tests/integration/service/test_losses.py::"
_OUTAGES = "tests/acceptance/test_outages.py::"
_SINK = "tests/integration/sinks/test_kafka_dead_letters.py::"

ROWS: Mapping[str, Row] = {
    "K01": Row(
        "broker stopped or killed, and started: unready meanwhile; goes on, repeats nothing",
        "health: Kafka is away; headrace_service_kafka_available_state",
        (
            f"{_BROKER}test_a_broker_that_restarts_again_and_again_repeats_nothing",
            f"{_OUTAGES}test_a_broker_stopped_frozen_or_killed_only_pauses_the_run",
        ),
    ),
    "K02": Row(
        "broker frozen beyond every time-out of the client: noticed in 15 s; goes on when thawed",
        "health: Kafka is away; headrace_service_kafka_available_state",
        (
            (
                f"{_BROKER}test_a_frozen_broker_is_noticed_and_waited_for_beyond_every_time_out_of_"
                "the_client"
            ),
            (
                "tests/contract/test_fetcher_outages.py::"
                "test_a_frozen_broker_is_noticed_though_the_client_says_nothing"
            ),
            "tests/contract/test_catalogue.py::test_a_frozen_broker_is_given_up_in_time",
        ),
    ),
    "K03": Row(
        "leader dies, or moves in order, among three brokers: goes on; the new epoch is stored",
        "headrace.leader_epoch in the offset's node",
        (
            f"{_LEADERS}test_a_leader_that_dies_again_and_again_costs_no_record_and_repeats_none",
            f"{_LEADERS}test_a_leader_moved_in_order_is_followed_without_an_outage",
        ),
    ),
    "K04": Row(
        "unclean election, or the log file cut: the partition halts; by policy told, then passed",
        "log partition_halted; headrace_partition_source_lost_records_total{reason=truncated}; "
        "a notice among the dead letters",
        (
            (
                f"{_LEADERS}test_what_an_unclean_leader_has_lost_halts_the_partition_and_is_told_"
                "before_it_is_passed"
            ),
            (
                "tests/contract/test_fetcher_losses.py::"
                "test_a_log_that_was_cut_off_is_told_by_the_leader_epoch"
            ),
        ),
    ),
    "K05": Row(
        "topic deleted: its partitions halt once the catalogue says so, too; others go on",
        "log partition_halted, discovery_failed; headrace_partition_halted_state; health",
        (
            f"{_TOPICS}test_a_deleted_topic_makes_the_service_unready_and_stops_no_other",
            "tests/contract/test_fetcher_losses.py::test_a_topic_deleted_while_it_is_read_is_named",
            "tests/contract/test_missing_topics.py::test_a_topic_that_is_unknown_for_a_moment_is_read_on",
        ),
    ),
    "K06": Row(
        "topic made again, while running or stopped: halts; by policy read from its first record",
        "log partition_halted; headrace_partition_source_lost_records_total{reason=recreated}; "
        "a notice among the dead letters",
        (
            f"{_TOPICS}test_a_topic_made_again_under_a_reader_halts_until_policy_says_read_it",
            f"{_TOPICS}test_a_service_whose_only_topic_was_made_again_ends_and_says_why",
            f"{_LOSSES}test_a_topic_created_again_is_another_one_however_many_records_it_holds",
        ),
    ),
    "K07": Row(
        "partitions added: read from their beginning, also with start_from latest",
        "log partition_started",
        (
            (
                f"{_TOPICS}test_added_partitions_are_read_from_their_beginning_also_by_who_starts_at_"
                "the_end"
            ),
        ),
    ),
    "K08": Row(
        "compaction, markers, aborted records: the stored offset passes them, the lag comes to 0",
        "headrace_partition_lag_records",
        (
            f"{_RECORDS}test_markers_and_what_was_aborted_leave_no_lag_behind",
            f"{_RECORDS}test_the_holes_of_a_compacted_log_leave_no_lag_behind",
            f"{_CONTRACT}test_markers_of_committed_and_aborted_transactions_are_passed",
        ),
    ),
    "K09": Row(
        "retention passes the reader: the partition halts; by policy told, counted and passed",
        "log partition_halted; headrace_partition_source_lost_records_total{reason=expired}; "
        "a notice among the dead letters",
        (
            (
                f"{_TOPICS}test_records_that_retention_takes_from_under_a_reader_are_never_passed_in_"
                "silence"
            ),
            f"{_LOSSES}test_expired_records_halt_their_partition_and_are_skipped_only_by_policy",
        ),
    ),
    "K10": Row(
        "a flipped bit on the broker's disk: its partition halts behind what is good, others go "
        "on; passed only with on_corrupt_record = skip, with a notice",
        "log partition_halted; headrace_partition_source_lost_records_total{reason=corrupt}",
        (
            (
                f"{_RECORDS}test_a_corrupt_record_halts_its_partition_until_an_operator_lets_it_be_"
                "passed"
            ),
            (
                "tests/contract/test_fetcher_losses.py::"
                "test_the_good_records_before_a_corrupt_one_come_first"
            ),
        ),
    ),
    "K11": Row(
        "a record above max_record_bytes, or above the client's limits: a letter that refers to it",
        "the letter's headrace.value_size and headrace.value_sha256",
        (
            f"{_RECORDS}test_a_record_that_is_too_large_becomes_a_letter_that_refers_to_it",
            (
                "tests/contract/test_fetcher_client.py::"
                "test_a_record_larger_than_every_limit_of_the_client_still_comes"
            ),
        ),
    ),
    "K12": Row(
        "null values go where null_values says; null keys and empty values are delivered as such",
        "headrace_service_filtered_records_total; the letter's headrace.error_class",
        (
            (
                f"{_RECORDS}test_null_values_go_where_policy_says_and_null_keys_and_empty_values_are_"
                "delivered"
            ),
            f"{_CONTRACT}test_a_record_keeps_everything",
        ),
    ),
    "K13": Row(
        "a transaction is never ended: told with its offset; others go on; nothing is skipped",
        "headrace_partition_transaction_wait_seconds; health after sixteen minutes",
        (
            (
                f"{_TRANSACTIONS}test_a_transaction_that_is_never_ended_is_named_where_it_holds_"
                "readers_up"
            ),
            f"{_CONTRACT}test_an_open_transaction_is_the_end_until_it_is_over",
        ),
    ),
    "K14": Row(
        "records that were fetched before a partition was moved: dropped, delivered once",
        "none: they are dropped before anything counts them",
        (
            f"{_CONTRACT}test_what_was_fetched_for_a_removed_partition_is_never_delivered",
            (
                "tests/contract/test_fetcher_events.py::"
                "test_runs_of_one_partition_become_one_chunk_and_stale_records_are_dropped"
            ),
        ),
    ),
    "K15": Row(
        "password refused or changed, right taken: the run ends and says so without the secret, "
        "what was resolved is stored, and it goes on with the right back",
        "the run's error; log dead_letter_refused where letters are refused",
        (
            f"{_RIGHTS}test_a_password_that_is_refused_ends_the_start_with_a_message_that_says_so",
            f"{_RIGHTS}test_a_right_that_is_taken_amid_a_run_ends_it_and_nothing_is_lost",
            f"{_RIGHTS}test_a_password_that_is_changed_amid_a_run_ends_it_when_it_is_asked_for",
            f"{_RIGHTS}test_letters_that_may_not_be_written_hold_their_offset",
        ),
    ),
    "K16": Row(
        "a quota: slow and ready, not away; everything is read once",
        "log kafka_throttled",
        (f"{_QUOTAS}test_a_throttled_service_is_slow_and_ready_and_reads_everything_once",),
    ),
    "K17": Row(
        "a header name that is not UTF-8: the record goes on; a bolt that reads headers rejects it",
        "the letter's headrace.error_class = HeadersUnreadable, and headrace.headers_error",
        (
            f"{_RECORDS}test_a_header_name_that_is_not_utf8_costs_a_record_its_headers_at_most",
            (
                "tests/unit/hostile/test_header_names.py::"
                "test_headers_of_any_bytes_are_given_or_refused_by_name"
            ),
        ),
    ),
    "D01": Row(
        "the letters' broker is away, or their topic deleted: no offset passes, others go on; "
        "after ten seconds not ready; sent when it is back",
        "headrace_sinks_dead_letters_waiting_seconds; health; log dead_letter_refused, "
        "dead_letter_broker_error",
        (
            f"{_LETTERS}test_no_offset_passes_a_record_whose_letter_cannot_be_sent",
            f"{_LETTERS}test_letters_whose_topic_was_deleted_are_sent_again_until_there_is_one",
            f"{_SINK}test_letters_pend_while_the_broker_is_away_and_arrive_when_it_is_back",
        ),
    ),
    "D02": Row(
        "a larger part of the newest records than [dead_letters] max_ratio is bad: the run ends",
        "the run's error TooManyDeadLetters, exit code 1",
        (f"{_LETTERS}test_too_many_dead_letters_end_the_run_and_lose_nothing",),
    ),
    "D03": Row(
        "a letter too large for its topic: sent without its value, with size, digest and place",
        "the letter's headrace.value_size and headrace.value_sha256",
        (
            f"{_RECORDS}test_a_record_that_is_too_large_becomes_a_letter_that_refers_to_it",
            f"{_SINK}test_a_letter_too_large_for_the_topic_is_sent_as_a_reference",
        ),
    ),
    "D04": Row(
        "a key too large for the letters' topic: left out, too; what fits in no form is named, and "
        "its offset waits",
        "the letter's headrace.key_size and headrace.key_sha256; log dead_letter_refused",
        (
            (
                f"{_LETTERS}test_a_key_larger_than_the_dead_letter_topic_takes_is_told_by_size_and_"
                "digest"
            ),
            f"{_LETTERS}test_a_letter_that_no_form_makes_small_enough_is_named_and_waits",
        ),
    ),
}
