"""The Lua scripts as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

import pytest

import kombu_redisdelay
from kombu_redisdelay.broker.server import scripts
from kombu_redisdelay.broker.server.cluster import guarded
from kombu_redisdelay.broker.server.scripts import TAKE, Script
from kombu_redisdelay.broker.server.wire import Argument, Command

#: The scripts depend on no release.
pytestmark = pytest.mark.once

#: A script with more ARGV than this has names for them: then a new one renumbers nothing.
MOST_BY_NUMBER = 6

#: How many more local names a script has room for. Lua allows 200 in a function, those of all includes are in
#: one, and a server refuses a script with more.
ROOM = 10

LUA = Path(kombu_redisdelay.__file__).parent / "lua"
SCRIPTS = sorted(LUA.glob("*.lua"))
INCLUDE = re.compile(r"-- include: (\w+)")
ABOVE = re.compile(r"^-- include: (\w+)", re.MULTILINE)


def header(source: str) -> str:
    """The comment that a script opens with."""
    return "\n".join(takewhile(lambda line: line.startswith("--"), source.splitlines()))


def locals_of(include: Path) -> Iterator[str]:
    """The names that an include defines in each script that has it."""
    text = code(include.read_text())
    yield from re.findall(r"^local function (\w+)", text, re.MULTILINE)
    for names in re.findall(r"^local (?!function)([\w, ]+)", text, re.MULTILINE):
        yield from re.findall(r"\w+", names)


def included(path: Path, lines: re.Pattern[str] = INCLUDE) -> set[str]:
    """The names of all that is put into a file; with `ABOVE`, only of what is there behind an include of it:
    what is put into a function is there only in that function."""
    names = lines.findall(path.read_text())
    return set(names).union(*(included(LUA / "include" / f"{name}.lua", lines) for name in names))


def code(source: str) -> str:
    return re.sub(r"--.*", "", source)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
class TestScript:
    def test_has_room_for_more_names(self, path: Path) -> None:
        lua51 = pytest.importorskip("lupa.lua51")
        more = "".join(f"local more_{number} = 0 " for number in range(ROOM))
        lua51.LuaRuntime().compile(more + Script(path.stem).text)

    def test_includes_resolve(self, path: Path) -> None:
        assert "include:" not in Script(path.stem).text

    def test_defines_what_it_calls(self, path: Path) -> None:
        text = code(Script(path.stem).text)
        ours = {
            name
            for include in (LUA / "include").glob("*.lua")
            for name in re.findall(r"^local function (\w+)", include.read_text(), re.MULTILINE)
        }
        for name in ours:
            calls = [match.start() for match in re.finditer(rf"(?<![\w.]){name}\(", text)]
            if calls:
                assert f"local function {name}(" in text, name
                assert text.index(f"local function {name}(") < min(calls), f"{name} is called too early"

    def test_has_nothing_that_it_does_not_use(self, path: Path) -> None:
        names = included(path)
        files = [path, *(LUA / "include" / f"{name}.lua" for name in names)]
        used = {file: set(re.findall(r"\w+", code(file.read_text()))) for file in files}
        for name in names:
            file = LUA / "include" / f"{name}.lua"
            others = set().union(*(used[other] for other in files if other != file))
            assert others & set(locals_of(file)), f"nothing uses {name}"

    def test_documents_every_key_and_argument(self, path: Path) -> None:
        source = path.read_text()
        for kind in ("KEYS", "ARGV"):
            used = {int(number) for number in re.findall(rf"{kind}\[(\d+)\]", code(source))}
            said = header(source)
            for number in used:
                assert re.search(rf"{kind}\[{number}\+?\]|{kind}  ", said), f"{kind}[{number}]"
            if re.search(rf"\b{kind}\b", code(source)):
                assert kind in said

    def test_has_names_for_many_arguments(self, path: Path) -> None:
        numbers = [int(number) for number in re.findall(r"ARGV\[(\d+)\]", code(path.read_text()))]
        assert max(numbers, default=0) <= MOST_BY_NUMBER
        assert not (numbers and Script(path.stem).names)

    def test_no_name_hides_one_of_an_include(self, path: Path) -> None:
        for name in included(path):
            assert not set(Script(path.stem).names) & set(locals_of(LUA / "include" / f"{name}.lua"))

    def test_says_what_it_returns(self, path: Path) -> None:
        source = path.read_text()
        if re.search(r"^return", code(source), re.MULTILINE):
            assert re.search(r"^-- Returns ", header(source), re.MULTILINE)

    def test_is_there_for_python(self, path: Path) -> None:
        loaded = {value.sha for value in vars(scripts).values() if isinstance(value, Script)}
        assert Script(path.stem).sha in loaded


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda path: path.stem)
def test_no_line_includes_what_another_line_brings(path: Path) -> None:
    for block in re.findall(r"(?:^ *-- include: \w+\n)+", path.read_text(), re.MULTILINE):
        names = INCLUDE.findall(block)
        brought = set().union(*(included(LUA / "include" / f"{name}.lua", ABOVE) for name in names))
        assert not brought & set(names)


class TestArguments:
    NAMED: ClassVar[dict[str, Argument]] = dict.fromkeys(TAKE.names, 0)

    def test_those_with_names_and_then_the_rest(self) -> None:
        assert TAKE.names[:2] == ("limit", "migrate_limit")
        args = TAKE.arguments((3, 6), **self.NAMED | {"limit": 7, "known_tasks": "all"})
        assert args[TAKE.names.index("limit")] == 7
        assert args[TAKE.names.index("known_tasks")] == "all"
        assert args[len(TAKE.names) :] == [3, 6]

    def test_each_must_be_there(self) -> None:
        with pytest.raises(TypeError, match=r"are limit, migrate_limit, .*; not limit$"):
            TAKE.arguments(limit=7)

    def test_no_other_may_be_there(self) -> None:
        with pytest.raises(TypeError, match=r", patience$"):
            TAKE.arguments(**self.NAMED, patience=1)

    def test_in_the_order_of_the_script(self) -> None:
        with pytest.raises(TypeError):
            TAKE.arguments(**dict(reversed(self.NAMED.items())))


class TestFlags:
    #: By which Dragonfly finds them, at the beginning only (`DeduceParams` of its script_mgr.cc).
    FOUND = re.compile(r"\A\s*?--!df flags=([^\s\n\r]*)[\s\n\r]")

    @pytest.mark.parametrize("prepared", [lambda command: command, guarded], ids=["one server", "a cluster"])
    def test_dragonfly_lets_each_script_use_any_key(self, prepared: Callable[[Command], Command]) -> None:
        for script in list(scripts.SCRIPTS.values()):
            _, _, text = prepared(("SCRIPT", "LOAD", script.text))
            found = self.FOUND.match(str(text))
            assert found is not None
            assert found[1] == "allow-undeclared-keys"


def test_every_include_is_used() -> None:
    assert set().union(*map(included, SCRIPTS)) == {path.stem for path in (LUA / "include").glob("*.lua")}


def test_no_script_decodes_or_encodes_json() -> None:
    # It reads a header of a message that was not published by us.
    paths = set(LUA.rglob("*.lua")) - {LUA / "include" / "fair_key.lua"}
    for path in paths:
        assert "cjson" not in code(path.read_text()), path
    assert "cjson.encode" not in (LUA / "include" / "fair_key.lua").read_text()
