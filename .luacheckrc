std = "lua51"
max_line_length = 110

-- What Redis gives its scripts.
read_globals = { "redis", "cjson", "KEYS", "ARGV" }

-- What a file gets from an include is known where the script is put together: `python -m tools.lua_check`.
ignore = { "113" }

-- Used where they are put in; a local of the file they stand in, since Redis forbids new globals.
files["kombu_redisdelay/lua/include"] = { ignore = { "211" } }

-- What it has in ARGV is used by what it includes.
files["kombu_redisdelay/lua/take.lua"] = { ignore = { "211", "311" } }
