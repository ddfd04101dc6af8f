std = "lua51"
max_line_length = 110

read_globals = {
  -- What Redis gives its scripts.
  "redis", "cjson", "KEYS", "ARGV",
  -- What a script gets from lua/include, pasted in where it says `-- include: <name>`.
  "bury", "clock_ms", "clock_us", "deliveries", "expect_list", "expect_schedule", "expire", "give_back",
  "ready_key", "schedule", "stored_payload", "stored_step", "wake", "with_deliveries", "without_deliveries",
}

-- Used where they are pasted in; a local of the file they stand in, since Redis forbids new globals.
files["kombu_redisdelay/lua/include"] = { ignore = { "211" } }
