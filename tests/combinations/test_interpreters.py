"""Which Python a row is run with."""

from __future__ import annotations

import sys

from tests.combinations.interpreters import Interpreter, Interpreters, ask

OLDEST = (5, 5)
NEW = Interpreter("new", "5.7.0", "8.1.0", False)
NEW_WITH_HIREDIS = Interpreter("new with hiredis", "5.7.0", "8.1.0", True)
OLD = Interpreter("old", "5.5.3", "4.6.0", False)
BETWEEN = Interpreter("between", "5.6.1", "6.4.0", True)


def test_a_row_gets_what_it_needs() -> None:
    interpreters = Interpreters([BETWEEN, OLD, NEW, NEW_WITH_HIREDIS], OLDEST)
    assert interpreters.of({"celery": "newest", "hiredis": "with"}) is NEW_WITH_HIREDIS
    assert interpreters.of({"celery": "newest", "hiredis": "without"}) is NEW
    assert interpreters.of({"celery": "oldest", "hiredis": "without"}) is OLD


def test_what_is_missing_is_not_replaced_by_what_is_like_it() -> None:
    interpreters = Interpreters([BETWEEN, NEW], OLDEST)
    assert interpreters.of({"celery": "oldest", "hiredis": "without"}) is None
    assert interpreters.of({"celery": "newest", "hiredis": "with"}) is None


def test_this_python_is_asked() -> None:
    interpreter = ask(sys.executable)
    assert interpreter is not None
    assert interpreter.path == sys.executable


def test_a_python_that_is_not_there_is_none() -> None:
    assert ask("/nowhere/python") is None
