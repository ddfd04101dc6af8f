"""The tables of states and verbs are all that Python, the command line and the page know of them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import kombu_redisdelay
from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli import list as list_command
from kombu_redisdelay.operations.changed import Stays
from kombu_redisdelay.operations.parameters import LIMIT, Parameter
from kombu_redisdelay.operations.readers import Cursor, Entry, Look, Span
from kombu_redisdelay.operations.states import STATES, State
from kombu_redisdelay.operations.verbs import VERBS, How, Verb
from tests.cli.site import run_delayed
from tests.finished import OF_MESSAGES
from tests.operations.kit import ids, in_each_state
from tests.transport.kit import Site
from tests.web.viewer import Viewer

PACKAGE = Path(kombu_redisdelay.__file__).parent

#: Files that name states or verbs. Each other one reads the tables. This list only gets shorter.
NAMING = {
    # The tables, and who cannot ask them.
    "operations/states.py",
    "operations/verbs.py",
    # What is said beside them: of a move from redis://, of the doctor, of a history.
    "cli/adopt.py",
    "operations/doctor/queues.py",
    "operations/history.py",
    # A column of what is listed again: how many are unacked.
    "cli/mend.py",
    # An event in a life: a message is ready.
    "operations/life.py",
}


class OddReader:
    """One message, of the queue "celery", which is always there."""

    def count(self, store: Store, names: Sequence[str], span: Span) -> int:
        return int("celery" in names)

    def read(self, store: Store, look: Look) -> Iterator[Entry]:
        if "celery" in look.names:
            yield Entry("celery", b"odd", "raw", unnamed="odd-one", cursor=("celery", 1), moment_ms=1000.0)

    def cursor(self, values: Sequence[Any]) -> Cursor:
        return values


PRAISED: list[str] = []
HEARD: list[Any] = []


def praise(store: Store, name: str, entries: Iterable[Entry], loudness: Any, stays: Stays) -> Iterator[Entry]:
    for entry in entries:
        PRAISED.append(entry.content.id)
        HEARD.append(loudness)
        yield entry


ODD = State("odd", OddReader(), ("since", "id", "queue", "task"), "The odd one first.")
LOUDNESS = Parameter("how_loud", LIMIT, "From a whisper.", "Loudness", "a whisper", least=1)
PRAISE = Verb(
    *("praise", "praised", "praising", "Praise odd messages.", {"odd": How(praise)}),
    parameters=(LOUDNESS,),
    prepare=lambda store, how_loud=None: how_loud,
)


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state and a verb that only the tables know."""
    PRAISED.clear()
    HEARD.clear()
    monkeypatch.setitem(STATES, ODD.name, ODD)
    monkeypatch.setitem(VERBS, PRAISE.name, PRAISE)

    def method(self: Messages, selection: Selection | None = None, **options: Any) -> Any:
        given = {"ids": None, "limit": None, "dry_run": False, "progress": None, **options}
        return self._act(PRAISE, selection, **given)

    monkeypatch.setattr(Messages, PRAISE.name, method, raising=False)
    # Its options were made when it was imported.
    importlib.reload(list_command)
    yield
    monkeypatch.undo()
    importlib.reload(list_command)


@pytest.mark.usefixtures("plugged_in")
class TestPluggedIn:
    def test_python(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        assert ids(messages.select()) == [*OF_MESSAGES, "odd-one"]
        odd = messages.get("odd-one")
        assert odd is not None
        assert (odd.state, odd.payload) == ("odd", b"odd")
        assert messages.count(Selection(state="odd", before="1h")) == 1
        assert [each.id for each in messages.page(Selection(state="odd")).messages] == ["odd-one"]
        done = messages.praise(Selection(every=True))  # type: ignore[attr-defined]
        assert (done.verb, done.count, PRAISED) == ("praise", 1, ["odd-one"])
        messages.praise(Selection(every=True), how_loud=3)  # type: ignore[attr-defined]
        assert HEARD == [None, 3]
        with pytest.raises(ValueError, match="state must be one of scheduled, ready, not 'odd'"):
            messages.cancel(Selection(state="odd"))

    def test_command_line(self, app: Celery) -> None:
        assert "praise " in run_delayed(app, "--help").stdout
        header, line = run_delayed(app, "list", "--state", "odd").stdout.splitlines()
        assert header.split() == ["SINCE", "ID", "QUEUE", "TASK"]
        assert "odd-one" in line
        assert "odd-one" in run_delayed(app, "list").stdout
        assert "state " in run_delayed(app, "show", "odd-one").stdout
        result = run_delayed(app, "praise", "--all", "--state", "odd", input="y\n")
        assert "Praise 1 odd message of all queues?" in result.stderr
        assert result.stdout == "Praised 1 message.\n"
        result = run_delayed(app, "praise", "odd-one", "unknown", "--json")
        assert result.stdout.splitlines()[0] == (
            '{"verb": "praise", "dry_run": false, "id": "odd-one", "messages": 1}'
        )
        assert re.search(r"--how-loud LIMIT +From a whisper.", run_delayed(app, "praise", "--help").stdout)
        run_delayed(app, "praise", "odd-one", "--how-loud", "3")
        assert HEARD == [None, None, 3]

    def test_page(self, app: Celery) -> None:
        viewer = Viewer(app)
        page = viewer.open("/messages", state="odd")
        assert page.ids == ["odd-one"]
        assert "1 odd message." in page.text
        assert viewer.press("Praise all").heading == "Praise 1 odd message of all queues?"
        assert "Praised 1 message." in viewer.press("Praise all").text
        viewer.open("/messages", state="odd")
        viewer.press("Praise all")
        assert "How loud must be a whole number from 1, not &#39;very&#39;" in (
            viewer.press("Praise all", how_loud="very").source
        )
        viewer.press("Praise all", how_loud="3")
        assert HEARD == [None, 3]
        viewer.open("/message", id="odd-one")
        assert "Praise 1 message?" in viewer.press("Praise").text
        viewer.close()


def test_no_other_file_names_a_state_or_a_verb() -> None:
    # What was done can fail, too.
    names = {*STATES, *VERBS} - {"remove", "failed"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        wing = path.relative_to(PACKAGE).parts[0]
        if wing not in ("operations", "cli", "web"):
            continue
        constants = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if constants & names:
            found.add(path.relative_to(PACKAGE).as_posix())
    for path in (PACKAGE / "web" / "templates").glob("*.html"):
        if names & set(re.findall(r"[\"']([\w-]+)[\"']", path.read_text())):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == NAMING
    for path in (PACKAGE / "web" / "templates").glob("*.html"):
        named = set(re.findall(r"'(\w+)'", path.read_text())) & names
        assert not named or path.name in ("overview.html", "queue.html"), path.name
