"""A server that refuses keys which a script does not declare, as Dragonfly does by default. It is simulated,
by lines in front of each script."""

from __future__ import annotations

from collections.abc import Callable

from kombu_redisdelay.broker.server import scripts
from kombu_redisdelay.broker.server.scripts import Script, digest

_FRONT = """
local redis = (function(server)
    local declared = {}
    for _, key in ipairs(KEYS) do declared[key] = true end
    local without, many = {TIME = 1, PUBLISH = 1, SELECT = 1}, {EXISTS = 1, DEL = 1, UNLINK = 1, TOUCH = 1}
    local function check(command, ...)
        local arguments, name = {...}, string.upper(command)
        if without[name] then return nil end
        for i = 1, many[name] and #arguments or 1 do
            if not declared[arguments[i]] then
                return {err = 'ERR script tried accessing undeclared key, key: ' .. tostring(arguments[i])}
            end
        end
    end
    local function call(...)
        local wrong = check(...)
        if wrong then error(wrong.err) end
        return server.call(...)
    end
    local function pcall(...) return check(...) or server.pcall(...) end
    return setmetatable({call = call, pcall = pcall}, {__index = server})
end)(redis)
"""


def refuse_undeclared_keys(set_attribute: Callable[[object, str, object], object] = setattr) -> None:
    """Have each server refuse them to this process."""
    # Not those of SCRIPTS: tests compose scripts again, and have taken the places of some there.
    for script in [each for each in vars(scripts).values() if isinstance(each, Script)]:
        text = _FRONT.replace("\n", " ") + script.text
        set_attribute(script, "text", text)
        set_attribute(script, "sha", digest(text))
