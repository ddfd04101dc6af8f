std = "lua51"
max_line_length = 110

read_globals = {
  -- What Redis gives its scripts.
  "redis", "cjson", "KEYS", "ARGV",
  -- What a script gets from lua/include, pasted in where it says `-- include: <name>`.
  "AFTER_DUPLICATES", "DUPLICATE", "add_brief", "base_of", "add_dead_letter", "clock_ms", "clock_us", "contains_any", "count_against",
  "count_existing", "dead_payload", "dead_step_and_payload", "deliveries", "duplicates_of", "expect_list", "expect_right", "expect_rights_to_schedule", "expect_schedule",
  "end_fairness", "expire", "fetch", "find_woken", "first_due", "first_listed", "first_ready_step", "forget_duplicates", "give_back", "hand_out",
  "hand_out_again", "hand_out_large", "hand_out_ready", "hold", "is_unwatched", "length", "listed_under", "losses", "make_bookmarks", "mark_of",
  "may_take", "members_of", "migrate", "HISTORY_KEPT_MS", "BRIEF_HISTORY_KEPT_MS", "note", "note_delivered", "note_given_back", "nothing_given_back", "number_in", "read_limits", "wait_before_retry_ms",
  "read_known", "read_list", "ready_key", "ready_lists", "ready_of", "schedule", "sooner", "spend", "still_bound",
  "stop_watching", "store_under_id", "stored_payload", "stored_start", "stored_step", "tell_of_given_back", "time_and_member", "unknown_entry", "unschedule",
  "BLOCKED", "BYTES_OF_KEY", "UNTIL_TAKEN", "entry_at", "forget_unique", "free_key", "free_keys", "has_unique", "heal", "hold_if_free", "identify", "is_unacked", "is_superseded", "keep_key",
  "key_of_unacked", "let_go", "may_become_ready", "move_to_schedule", "read_record", "record_of", "running_text", "score_of", "takes_key", "text_in", "unique_of", "write_record",
  "FIRST_ARRIVAL", "MOST_LOOKED_AT", "free_some", "index_of_0", "write_turns", "REBASE", "clock_of", "count_key", "count_keys_from_now", "counts_keys", "fair_key_of", "fair_state", "open_fair", "enter_fair", "next_fair", "leave_fair", "forget_sorted_in", "remove_unused",
  "is_at_limit", "is_counted", "key_and_payload", "key_list", "key_member", "close_lane", "move_back", "next_in_turn", "open_lanes",
  "free_earlier", "look_at_earlier_us", "push_to_key", "put_first", "read_fair_limits", "read_fairness", "read_keys", "rebase", "release_key", "ring_alarms", "set_alarms", "move_strays", "SORTED_IN", "watch_alarm", "note_work", "LIMITED", "sort_in", "take_past", "token_of_key_us",
  "sorted_in", "turn_text", "unlimit", "usable_weight", "write_counts",
  "PASSED_MS", "STEP_FIELDS", "check_counts", "count_out", "expect_turns", "forget_step", "give_turns", "keys_without_turn", "list_holders", "look_at_limits", "lose_count", "lose_count_of", "turns_of_first", "waits_in",
  "count_from", "forget_returned", "group_in", "returned_in", "IS_THERE", "KEPT", "LARGEST_KEPT", "REFUSED", "are_usable", "expect_failed", "count_failed", "has_counted", "mend_failed", "count_anew", "unlink_rest", "failed_keys", "remove_failed", "trim_failed", "requeue", "ready_list_of", "key_and_holder", "take_out", "was_not_there", "taken_out",
  "until_permit_us", "until_token_us", "until_us", "waiting_step", "waits_since", "wake", "watch", "with_members", "work_when_full",
}

-- Used where they are pasted in; a local of the file they stand in, since Redis forbids new globals.
files["kombu_redisdelay/lua/include"] = { ignore = { "211" } }
