std = "lua51"
max_line_length = 110

read_globals = {
  -- What Redis gives its scripts.
  "redis", "cjson", "KEYS", "ARGV",
  -- What a script gets from lua/include, pasted in where it says `-- include: <name>`.
  "DELIVERIES", "bury", "clock_ms", "clock_us", "deliveries", "expire", "give_back", "migrate", "ready_key",
  "schedule", "stored_payload", "stored_step", "wake", "with_deliveries",
}

-- Used where they are pasted in; a local of the file they stand in, since Redis forbids new globals.
files["kombu_redisdelay/lua/include"] = { ignore = { "211" } }
