"""Who plays which row of the fault matrix: rebalances, sinks, bolts and operations."""

from tests.faults.row import Row

_PARTITION = "tests/unit/partition"
_SERVICE = "tests/unit/service"
_TOPOLOGY = "tests/unit/topology"
_SINKS = "tests/unit/sinks"
_CONTRACT = "tests/contract"
_REAL = "tests/integration"
_FAULTS = "tests/integration/faults"
_WHOLE = "tests/acceptance"

_LEAVING = f"{_PARTITION}/test_leaving.py"
_AMID = f"{_PARTITION}/test_leaving_amid_commits.py"
_REBALANCE = f"{_FAULTS}/test_rebalance_faults.py"
_DISK = f"{_FAULTS}/test_sink_faults_disk.py"
_TABLE = f"{_FAULTS}/test_sink_faults_table.py"
_TRANSACTIONS = f"{_CONTRACT}/test_transactional_sink.py"
_POSTGRES = f"{_REAL}/sinks/test_postgres_outages.py"
_SPARK = f"{_REAL}/sinks/test_spark_driver.py"
_CUTS = f"{_FAULTS}/test_power_cuts.py"
_STORES = f"{_FAULTS}/test_store_faults.py"
_FOREIGN = f"{_FAULTS}/test_foreign_writers.py"
_EXITS = f"{_SERVICE}/test_bolts_that_exit.py"
_BREAKS = f"{_SERVICE}/test_misbehaving_bolts.py"
_ADVANCED = f"{_SERVICE}/test_advanced_bolts.py"
_HEALTH = f"{_SERVICE}/test_health.py"

REBALANCE = {
    "R01": Row(
        "revoked with trees in flight: what can be finished within the hand-over's deadline is, "
        "and stored; then the partition is given up, and late answers count for nothing",
        "partition_leaving, partition_released, partition_given_up; given_up in the account",
        (
            f"{_LEAVING}::test_a_partition_that_leaves_is_released_once_what_is_in_flight_is_resolved_and_stored",
            f"{_LEAVING}::test_at_the_deadline_a_partition_is_given_up_with_what_is_in_flight",
            f"{_REBALANCE}::test_at_the_deadline_a_partition_is_given_up_and_late_answers_count_for_nothing",
            f"{_WHOLE}/test_replicas.py::test_a_fourth_replica_gets_its_share_and_nothing_is_repeated",
        ),
    ),
    "R02": Row(
        "revoked while its offset is being stored: released when that is answered; after the "
        "deadline given up, and the late answer is none for a later ownership",
        "partition_released, partition_given_up",
        (
            f"{_AMID}::test_a_partition_whose_offset_is_being_stored_is_released_when_that_is_answered",
            f"{_AMID}::test_without_an_answer_it_is_given_up_at_the_deadline_and_a_late_one_changes_nothing",
            f"{_AMID}::test_a_refusal_that_comes_late_harms_no_later_ownership",
            f"{_AMID}::test_an_answer_that_comes_late_is_not_taken_for_what_a_later_ownership_has_stored",
        ),
    ),
    "R03": Row(
        "revoked, and the same partition back: it begins at the stored offset, at a place of its "
        "own, and late answers for the former ownership are not taken for the new one's",
        "partition_given_up, then partition_resumed",
        (
            f"{_LEAVING}::test_a_partition_that_comes_back_begins_where_its_offset_is_stored",
            f"{_LEAVING}::test_a_partition_that_is_wanted_again_while_it_leaves_is_released_first",
            f"{_REBALANCE}::test_at_the_deadline_a_partition_is_given_up_and_late_answers_count_for_nothing",
        ),
    ),
    "R05": Row(
        "lost, not revoked: nothing is committed of it any more, whatever resolves",
        "zookeeper_session_ended; an epoch that has grown",
        (
            f"{_REBALANCE}::test_a_partition_that_is_lost_and_not_revoked_is_not_committed_by_whom_it_is_lost_to",
            f"{_CONTRACT}/test_offset_ownership.py::test_a_session_that_ends_takes_every_ownership_with_it",
            f"{_WHOLE}/test_replicas.py::test_a_replica_that_stood_still_past_its_session_does_no_harm_and_comes_back",
        ),
    ),
}

SINKS = {
    "S01": Row(
        "the JVM is killed before, within and after a commit: it is started anew, what became of "
        "the commit is read, and no row is lost or, exactly once, there twice",
        "spark_died, spark_restarted, sink_write_failed",
        (
            f"{_SPARK}::test_a_jvm_killed_between_and_within_writes_is_started_anew_and_no_row_is_lost",
            f"{_WHOLE}/test_outages.py::test_a_killed_spark_is_started_anew_and_repeats_at_most_the_batch_it_wrote",
        ),
    ),
    "S02": Row(
        "the disk is full, on a tmpfs of some megabytes: the batch is tried until there is room, "
        "nothing is stored meanwhile, and then every row is there once",
        'sink_write_failed with "No space left on device", sink_recovered; not ready',
        (
            f"{_DISK}::test_a_disk_that_is_full_pauses_the_run_and_no_row_is_lost_or_repeated",
            f"{_DISK}::test_a_disk_that_is_full_between_staging_and_commit_commits_nothing_and_then_once",
        ),
    ),
    "S03": Row(
        "writing is not permitted, on a tmpfs remounted read-only and under chattr's +i: the same; "
        "where it is so at the start, that fails and says why",
        "sink_write_failed with the reason, sink_recovered; not ready",
        (
            f"{_DISK}::test_a_disk_that_turns_read_only_pauses_the_run_and_no_row_is_lost_or_repeated",
            f"{_DISK}::test_a_table_that_may_not_be_written_pauses_the_run_and_no_row_is_lost_or_repeated",
            f"{_CONTRACT}/test_sink.py::test_a_warehouse_that_cannot_be_written_is_refused_when_opened",
        ),
    ),
    "S04": Row(
        "a sink that is ten times slower than it might be: sources are held back, and the "
        "process's memory stays flat",
        "headrace_service_held_back_state, headrace_partition_pending_bytes",
        (
            f"{_FAULTS}/test_sink_faults_pace.py::test_a_sink_ten_times_slower_holds_back_what_it_cannot_take_and_memory_stays_flat",
            f"{_SERVICE}/test_backpressure.py::test_a_sink_whose_next_batch_is_due_stops_the_emitting_and_the_loop_turns_on",
            f"{_WHOLE}/test_runtime.py::test_a_sink_that_does_not_write_holds_its_own_source_and_no_other",
        ),
    ),
    "S05": Row(
        "a row that does not fit its table is named, and its record alone becomes a dead letter; "
        "the rest of the batch is durable",
        "headrace_sinks_rejected_rows_total, the dead letter's reason",
        (
            f"{_CONTRACT}/test_sink.py::test_rejected_rows_are_named_exactly_and_the_rest_is_durable",
            f"{_TRANSACTIONS}::test_rows_that_do_not_fit_are_named_and_the_others_are_durable",
            f"{_REAL}/sinks/test_postgres_tables.py::test_a_row_that_only_the_database_can_refuse_is_rejected_alone_when_it_is_staged",
            f"{_SERVICE}/test_testkit.py::test_a_row_that_does_not_fit_the_schema_is_dead_lettered_alone",
            f"{_SERVICE}/test_exactly_once.py::test_a_row_that_the_sink_refuses_is_lettered_before_its_transaction_is_committed",
        ),
    ),
    "S06": Row(
        "a task is tried again, or twice at once by speculation: what one of its tries has staged "
        "is committed, and what the others have is no part of the table",
        "none: it is Spark's; spark_restarted is not told",
        (
            f"{_FAULTS}/test_sink_faults_speculation.py::test_every_row_is_there_once_though_a_task_runs_twice_at_once",
            f"{_WHOLE}/test_spark_cluster.py::test_every_row_is_there_once_though_an_executor_of_a_cluster_is_killed",
            f"{_REAL}/sinks/test_spark_tasks.py::test_a_task_whose_worker_is_killed_is_done_again",
            f"{_SERVICE}/spark_engine/test_engine_failures.py::test_what_a_stale_try_has_staged_is_discarded",
        ),
    ),
    "S07": Row(
        "the sink has committed and the reply is lost: the commit is tried again, and finds itself "
        "done",
        "sink_write_failed, sink_recovered",
        (
            f"{_SINKS}/test_writer.py::test_a_commit_whose_reply_was_lost_is_repeated_and_finds_itself_done",
            f"{_POSTGRES}::test_a_connection_that_is_ended_inside_a_commit_leaves_it_done_or_not_and_that_can_be_read",
            f"{_SINKS}/tables/test_delta.py::test_a_commit_that_has_landed_though_it_raised_is_read_back",
            f"{_REAL}/sinks/test_topic_sink.py::test_a_commit_whose_answer_is_lost_is_decided_at_once",
            f"{_REAL}/sinks/test_postgres_state.py::test_a_reply_of_a_commit_that_is_lost_leaves_it_done_or_not",
        ),
    ),
    "S08": Row(
        "a writer with a lower epoch beside a later owner is refused by the sink itself, and "
        "changes nothing",
        "the line is left out (SinkFenced); partition_given_up or partition_halted",
        (
            f"{_TRANSACTIONS}::test_a_lower_epoch_is_refused_after_a_fence_and_changes_nothing",
            f"{_TRANSACTIONS}::test_a_zombie_that_stages_after_the_fence_is_refused_at_the_commit",
            f"{_TRANSACTIONS}::test_nothing_of_a_zombie_lands_once_its_successor_has_fenced_it",
            f"{_POSTGRES}::test_a_zombie_that_stands_still_while_it_sends_rows_holds_up_nobody_and_is_refused",
            f"{_WHOLE}/test_exactly_once.py::test_a_process_that_wakes_up_after_its_successor_began_commits_nothing",
        ),
    ),
    "S09": Row(
        "the table is dropped under a run: at least once it is made anew and no later row is "
        "lost; exactly once the run ends, as what was committed cannot be told any more",
        "sink_busy, or the run's error, which names the table",
        (
            f"{_TABLE}::test_at_least_once_a_table_that_is_dropped_is_made_anew_and_no_later_row_is_lost",
            f"{_TABLE}::test_a_table_whose_log_is_gone_ends_the_run_and_nothing_more_is_stored",
            f"{_REAL}/sinks/test_postgres_tables.py::test_what_was_removed_while_rows_are_written_is_noticed_exactly_once",
        ),
    ),
    "S10": Row(
        "a statement is cut off in the middle of its rows: none of them is in the table, and the "
        "next try writes each once",
        "sink_write_failed (AdminShutdown)",
        (
            f"{_FAULTS}/test_sink_faults_postgres.py::test_at_least_once_a_batch_that_is_cut_off_leaves_no_row_and_comes_once",
            f"{_FAULTS}/test_sink_faults_postgres.py::test_exactly_once_a_commit_that_is_cut_off_leaves_no_row_and_comes_once",
            f"{_POSTGRES}::test_the_control_that_commits_rows_and_txids_apart_does_show_duplicates",
        ),
    ),
    "S11": Row(
        "the JVM stands still (SIGSTOP): the job's deadline passes, the JVM is killed and started "
        "anew; a drain does not wait for it beyond its own deadline",
        "spark_killed, spark_restarted, sink_write_failed",
        (
            f"{_SPARK}::test_a_frozen_jvm_is_killed_also_when_no_job_of_spark_runs",
            f"{_REAL}/sinks/test_spark_driver_start.py::test_a_spark_that_hangs_while_it_starts_is_killed",
            f"{_WHOLE}/test_drain.py::test_a_sink_that_hangs_does_not_hold_the_drain_past_its_deadline",
        ),
    ),
    "S12": Row(
        "the power is cut, right after an answer or at any moment: what was answered is there, "
        "also where a commit was only found; a torn entry of ours is repaired, the table opens",
        "delta_torn_entry_moved",
        (
            f"{_CUTS}::test_answered_transactions_outlive_a_power_cut",
            f"{_CUTS}::test_transactions_found_on_replay_outlive_a_power_cut",
            f"{_CUTS}::test_power_cut_at_any_moment_tears_no_table",
            f"{_CUTS}::test_batches_that_spark_wrote_outlive_a_power_cut",
        ),
    ),
    "S13": Row(
        "each request of a transaction, and of a start, on S3 meets each fault: 503, SlowDown, "
        "500, 409, a lost request or reply, one sent twice or late, a rival; no row lost or twice",
        "sink_write_failed where the client gives up",
        (
            f"{_STORES}::test_each_request_may_meet_a_fault",
            f"{_STORES}::test_each_request_of_a_start_may_meet_a_fault",
            f"{_STORES}::test_spark_reads_the_same_after_bad_weather",
        ),
    ),
    "S14": Row(
        "from each request on a store refuses all: no bucket, a skewed clock, no right, or an "
        "expired key that is renewed in its file; it is tried until it goes, no row twice",
        "sink_write_failed",
        (
            f"{_STORES}::test_store_may_refuse_from_each_request_on",
            f"{_STORES}::test_expired_key_is_renewed_from_its_file_at_each_request",
        ),
    ),
    "S15": Row(
        "a zombie's request is held back, each in turn, until its successor has committed: it is "
        "refused, and each row is there once; a store may answer after 200 ms each time",
        "SinkFenced",
        (
            f"{_STORES}::test_zombie_held_at_each_request_is_fenced",
            f"{_STORES}::test_slow_store_loses_nothing",
        ),
    ),
    "S16": Row(
        "Spark appends, optimizes or rewrites, vacuums or expires beside a sink, for ten minutes: "
        "our commits are tried again after conflicts, and no row of either is lost or twice",
        "SinkBusy after 50 conflicts in a row",
        (
            f"{_FOREIGN}::test_spark_appends_optimizes_and_vacuums_beside_a_delta_sink",
            f"{_FOREIGN}::test_spark_appends_rewrites_and_expires_beside_an_iceberg_sink",
        ),
    ),
    "S17": Row(
        "a host's clock is hours or a year ahead or behind: owners fence each other, no row is "
        "lost or twice, and Spark reads the tables; a vacuum by a clock that is ahead is refused",
        "SinkFailed: the clock",
        (
            f"{_FAULTS}/test_clock_skew.py::test_owners_whose_clocks_differ_fence_each_other_and_lose_no_row",
            f"{_FAULTS}/test_clock_skew.py::test_vacuum_by_a_clock_that_is_ahead_takes_no_staged_file",
            f"{_SINKS}/tables/test_delta_maintenance.py::test_files_that_vacuum_may_have_removed_are_never_committed",
            f"{_SINKS}/tables/test_iceberg_maintenance.py::test_a_clock_that_is_behind_changes_neither_columns_nor_snapshots",
            f"{_SINKS}/spark/test_spark_sink.py::test_files_are_synced_after_the_clock_was_set_back",
        ),
    ),
}

BOLTS = {
    "B01": Row(
        "a bolt raises: its record is tried again, then a dead letter; no other record waits",
        "step_failing, headrace_topology_failed_tuples_total",
        (
            f"{_SERVICE}/test_testkit.py::test_a_failing_record_holds_nobody_else_up",
            f"{_TOPOLOGY}/workers/test_runners.py::test_one_failure_loses_nothing_else",
            f"{_ADVANCED}::test_a_call_that_raises_sends_nothing_and_its_record_comes_again",
            f"{_SERVICE}/test_overdue.py::test_failures_are_told_by_step_and_class_and_not_one_by_one",
            f"{_WHOLE}/test_peers_failures.py::test_a_record_that_always_fails_takes_no_other_with_it",
        ),
    ),
    "B02": Row(
        "a call never returns: it fails at its deadline, another worker takes the place, a late "
        "result is dropped; when twice as many are stuck as there are workers, the process is not "
        "ready, and a minute later asks to be restarted",
        "headrace_topology_abandoned_calls, bolt_calls_never_end, /health/ready, /health/live",
        (
            f"{_SERVICE}/test_stuck_bolts.py::test_calls_that_never_return_cost_their_workers_and_the_last_one_is_told",
            f"{_TOPOLOGY}/workers/test_timeouts.py::test_a_thread_that_takes_too_long_is_replaced_and_its_late_result_dropped",
            f"{_TOPOLOGY}/workers/test_timeouts.py::test_an_async_call_that_will_not_be_cancelled_is_replaced",
            f"{_HEALTH}::test_a_bolt_whose_workers_are_all_stuck_is_not_ready_and_after_a_minute_not_live",
            f"{_HEALTH}::test_a_loop_that_stands_still_is_neither",
        ),
    ),
    "B03": Row(
        "a tuple is acked twice: its record becomes a dead letter that says so; at the acker a "
        "repeated ack is counted and ignored",
        "step_failing (BoltError), headrace_acker_ignored_messages_total",
        (
            f"{_BREAKS}::test_a_bolt_that_settles_a_tuple_twice_costs_its_own_record_only",
            "tests/unit/acker/test_acker.py::test_repeated_acks_of_a_completed_tree_are_counted_and_ignored",
            "tests/unit/acker/test_acker.py::test_an_edge_acked_twice_never_completes_its_tree",
        ),
    ),
    "B04": Row(
        "a tuple is acked after it was failed: the same; a tree that has failed never completes",
        "step_failing (BoltError)",
        (
            f"{_BREAKS}::test_a_bolt_that_settles_a_tuple_twice_costs_its_own_record_only",
            "tests/unit/acker/test_acker.py::test_a_failed_tree_never_completes",
            f"{_SERVICE}/test_overdue.py::test_a_bolt_that_acks_a_tuple_after_its_time_does_nothing_wrong",
        ),
    ),
    "B05": Row(
        "a tuple is never acked: its record is tried again after the time-out, then a dead letter "
        "that names the bolt",
        "step_failing, headrace_acker_expired_trees_total",
        (
            f"{_ADVANCED}::test_a_tuple_that_is_never_acked_expires_and_its_record_comes_again",
            f"{_SERVICE}/test_overdue.py::test_a_tuple_that_is_never_acked_fails_at_the_bolt_that_keeps_it",
            "tests/unit/acker/test_timeouts.py::test_a_tree_expires_between_the_timeout_and_one_tick_more",
        ),
    ),
    "B06": Row(
        "a value is anchored to a tuple that was acked: the call is undone, and its record becomes "
        "a dead letter that says so",
        "step_failing (BoltError)",
        (
            f"{_BREAKS}::test_a_bolt_that_settles_a_tuple_twice_costs_its_own_record_only",
            f"{_TOPOLOGY}/test_advanced.py::test_a_bolt_that_breaks_its_contract_fails_its_tuple_and_nothing_is_lost",
        ),
    ),
    "B07": Row(
        "a value without an anchor reaches the sink and nobody waits for it; if it fails it is "
        "lost, and that is counted and told",
        "headrace_acker_unanchored_tuples_total, unanchored_tuples_lost",
        (
            f"{_ADVANCED}::test_a_value_without_an_anchor_reaches_the_sink_and_nobody_waits_for_it",
            f"{_ADVANCED}::test_a_value_without_an_anchor_that_fails_is_lost_and_troubles_nobody",
            f"{_SERVICE}/test_trees.py::test_a_tuple_without_an_anchor_that_fails_is_counted_and_told",
        ),
    ),
    "B08": Row(
        "a record that always fails is tried so often and then a dead letter with its attempts; "
        "its offset passes once that is durable",
        "the dead letter's attempts, headrace_service_dead_lettered_records_total",
        (
            f"{_SERVICE}/test_testkit.py::test_a_record_out_of_retries_is_dead_lettered_with_its_attempts",
            f"{_SERVICE}/test_gaps.py::test_records_that_never_come_right_are_buried_one_by_one_and_the_others_are_rows",
            "tests/unit/storm/test_data_loss.py::test_a_record_that_is_given_up_is_a_durable_letter_before_its_offset_passes",
            f"{_WHOLE}/test_peers_failures.py::test_a_record_that_always_fails_takes_no_other_with_it",
        ),
    ),
    "B09": Row(
        "a value that branches share is changed in place: the other branch sees it, as is told; "
        "the record's own bytes cannot change, so retries and dead letters are as they should be",
        "none: the rule is documented (streams and groupings)",
        (
            f"{_BREAKS}::test_a_bolt_that_changes_a_value_in_place_cannot_change_its_record",
            f"{_TOPOLOGY}/test_streams.py::test_a_stream_that_is_used_twice_feeds_both_steps",
        ),
    ),
    "B10": Row(
        "a million values of one record: one tree; while a slow sink has them the next records "
        "are held back, and then all is there",
        "headrace_service_held_back_state, headrace_sinks_pending_rows",
        (
            f"{_BREAKS}::test_a_million_values_of_one_record_are_one_tree_and_hold_the_next_records_back",
        ),
    ),
    "B11": Row(
        "a slow leak: a gate on traced memory sees less than a pointer a record, and sees a bolt "
        "that keeps one",
        "the process's resident memory; the gate in the tests",
        (
            f"{_SERVICE}/test_leaks.py::test_a_pipeline_keeps_nothing_of_what_is_done",
            f"{_SERVICE}/test_leaks.py::test_the_gate_sees_a_bolt_that_keeps_a_pointer_to_every_record",
        ),
    ),
    "B12": Row(
        "SystemExit and MemoryError fail their record alone, whatever the kind of bolt, and so "
        "does a KeyboardInterrupt in a thread or on the event loop; on the owner thread that is "
        "Ctrl-C, ends the run, and loses nothing",
        "step_failing, tick_failed, the dead letter's reason",
        (
            f"{_EXITS}::test_a_bolt_that_would_end_the_process_fails_its_record_alone",
            f"{_EXITS}::test_a_keyboard_interrupt_that_no_keyboard_sent_fails_its_record_alone",
            f"{_EXITS}::test_a_keyboard_interrupt_on_the_owner_thread_ends_the_run_and_loses_nothing",
            f"{_EXITS}::test_a_tick_that_would_end_the_process_is_a_failed_tick",
        ),
    ),
    "B13": Row(
        "an async bolt cancels all tasks of its loop: calls that it cuts short are tried again, "
        "and as many run at once as before",
        "step_failing",
        (f"{_BREAKS}::test_a_bolt_that_cancels_all_tasks_of_the_loop_stalls_nothing",),
    ),
}

OPERATIONS = {
    "O01": Row(
        "whichever key is wrong, one line has its path, what was found and what is allowed",
        "exit 78",
        (
            f"{_SERVICE}/test_every_config_error.py::test_a_value_of_another_kind_is_one_line_with_its_key_and_what_is_allowed",
            f"{_SERVICE}/test_every_config_error.py::test_a_key_that_does_not_exist_is_told_with_those_that_do",
            f"{_SERVICE}/test_every_config_error.py::test_no_time_and_no_count_may_be_nothing_or_less",
            f"{_SERVICE}/test_config.py::test_a_fault_names_the_key_what_was_found_and_what_is_allowed",
            f"{_SERVICE}/test_cli.py::test_a_bad_configuration_ends_with_78_and_one_line",
        ),
    ),
    "O02": Row(
        "a command line that is none ends at once, without a traceback",
        "exit 2",
        (f"{_SERVICE}/test_cli.py::test_wrong_usage_ends_with_2",),
    ),
    "O03": Row(
        "a hundred scrapes a second and hundreds of clients that never finish asking: each scrape "
        "is answered, and the run is as fast as without them",
        "the run's rows a second; slow clients are cut off",
        (
            f"{_FAULTS}/test_operation_faults.py::test_scrapes_and_slow_clients_do_not_hold_up_a_run",
            f"{_SERVICE}/test_http.py::test_slow_clients_block_nobody_and_are_cut_off",
            f"{_SERVICE}/test_http.py::test_a_crowd_of_silent_clients_costs_the_oldest_their_place",
            f"{_SERVICE}/test_http.py::test_many_scrapes_at_once_are_all_answered",
        ),
    ),
    "O04": Row(
        "live says whether a restart would help, ready whether work gets done, in every state: "
        "starting, running, standing still, servers away, halted, failing, stuck",
        "/health/live, /health/ready",
        (
            f"{_HEALTH}::test_before_the_first_turn_it_is_live_but_neither_started_nor_ready",
            f"{_HEALTH}::test_a_loop_that_turns_is_live_and_ready",
            f"{_HEALTH}::test_a_loop_that_stands_still_is_neither",
            f"{_HEALTH}::test_what_is_away_makes_it_not_ready_but_no_restart_would_help",
            f"{_HEALTH}::test_a_bolt_whose_workers_are_all_stuck_is_not_ready_and_after_a_minute_not_live",
            f"{_WHOLE}/test_outages.py::test_zookeeper_stopped_frozen_or_killed_only_pauses_the_commits",
            f"{_WHOLE}/test_outages.py::test_a_broker_stopped_frozen_or_killed_only_pauses_the_run",
        ),
    ),
    "O05": Row(
        "a log pipe that is full, or closed, costs the logs and not the run",
        "log_lines_dropped",
        (
            f"{_REAL}/service/test_cli.py::test_the_pipeline_outlives_the_reader_of_its_logs",
            f"{_SERVICE}/test_logs.py::test_a_standard_error_that_nobody_reads_does_not_stop_the_process",
            f"{_SERVICE}/test_logs.py::test_lines_dropped_meanwhile_are_counted_when_somebody_reads_again",
        ),
    ),
    "O06": Row(
        "what an earlier version stored is read; what a later one stored is refused, said so, and "
        "left as it is",
        "StoreCorrupt, which names the version; partition_halted",
        (
            f"{_CONTRACT}/test_later_versions.py::test_what_a_later_version_wrote_stops_its_partition_and_stays_as_it_is",
            f"{_CONTRACT}/test_later_versions.py::test_what_becomes_one_of_a_later_version_while_it_is_ours_is_not_overwritten",
            f"{_CONTRACT}/test_later_versions.py::test_what_an_earlier_version_wrote_is_taken_up_where_it_stopped",
            f"{_PARTITION}/test_assignment.py::test_an_unreadable_offset_halts_its_partition_only",
            f"{_SERVICE}/test_membership.py::test_a_plan_that_cannot_be_read_leaves_us_what_we_have",
        ),
    ),
}

ROWS: dict[str, Row] = {**REBALANCE, **SINKS, **BOLTS, **OPERATIONS}
