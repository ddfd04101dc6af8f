"""What all verbs have in common, in each of their states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.operations.filters import FILTERS
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.operations.verbs import VERBS, Verb
from tests.finished import OF_MESSAGES
from tests.operations.kit import ids, put
from tests.transport.kit import Site

each_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
each_state_of_it = pytest.mark.parametrize(
    ("verb", "state"),
    [
        pytest.param(verb, state, id=f"{verb.name}, {state}")
        for verb in VERBS.values()
        for state in verb.states
    ],
)

#: When a verb was ended after a script or two, there are still more than two scripts can handle.
MESSAGES = 650

#: What verbs ask for.
ASKED: dict[str, dict[str, Any]] = {"reschedule": {"countdown": 3600}}


def do(messages: Messages, verb: Verb, *args: Any, **options: Any) -> Any:
    args = tuple(in_its_states(verb, each) for each in args)
    return getattr(messages, verb.name)(*args, **ASKED.get(verb.name, {}), **options)


def in_its_states(verb: Verb, selection: Selection) -> Selection:
    """The same selection. If the verb needs states, it has all that the verb knows."""
    is_open = selection.is_said and selection.ids is None and selection.state is None
    return replace(selection, state=verb.states) if verb.needs_state and is_open else selection


@each_state_of_it
class TestEachState:
    def test_by_ids(self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str) -> None:
        put(site, app, state, "a", "b", "a")
        done = do(messages, verb, ids=["a", "unknown", "a"])
        assert (done.verb, done.count, done.by_id) == (verb.name, 2, {"a": 2, "unknown": 0})
        assert done
        assert not done.is_dry_run
        again = do(messages, verb, Selection(ids=["unknown"], state=state, queue="celery"))
        assert (again.count, again.by_id, bool(again)) == (0, {"unknown": 0}, False)
        assert messages.count(Selection(state=state)) == (3 if _stays(verb) else 1)

    def test_ids_of_one_queue(
        self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str
    ) -> None:
        put(site, app, state, "a")
        put(site, app, state, "a", queue="other")
        assert do(messages, verb, Selection(ids=["a"], queue="other")).by_id == {"a": 1}
        assert do(messages, verb, Selection(ids=["a"], queue="unknown")).by_id == {"a": 0}

    def test_all_of_a_queue(
        self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str
    ) -> None:
        put(site, app, state, "a", "b")
        put(site, app, state, "c", queue="other")
        assert do(messages, verb, Selection(queue="celery", state=state)).count == 2
        assert do(messages, verb, Selection(queue="other")).count == 1
        assert do(messages, verb, Selection(queue=[])).count == 0

    def test_those_that_match(
        self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str
    ) -> None:
        put(site, app, state, "a", "b", task="mail.send", group_id="group")
        put(site, app, state, "c", group_id="group")
        put(site, app, state, "d", task="mail.sort")
        assert do(messages, verb, Selection(task="mail.*", related="group")).count == 2
        left = set(ids(messages.select(Selection(state=state))))
        assert left == ({"a", "b", "c", "d"} if _stays(verb) else {"c", "d"})

    def test_by_time(self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str) -> None:
        put(site, app, state, "a", "b")
        moments = sorted(
            message.moment for message in messages.select(Selection(state=state)) if message.moment
        )
        assert len(moments) == 2
        assert do(messages, verb, Selection(state=state, before=moments[0])).count == 0
        assert do(messages, verb, Selection(state=state, after=moments[0], before="2h")).count in (
            # Distances are ahead for scheduled ones, and back for the others.
            (2,) if STATES[state].is_ahead else (0,)
        )

    def test_a_dry_run_changes_nothing(
        self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str
    ) -> None:
        put(site, app, state, "a", "b", task="mail.send")
        before = list(messages.select())
        would = do(messages, verb, Selection(task="mail.*"), dry_run=True)
        assert (would.verb, would.count, would.is_dry_run) == (verb.name, 2, True)
        assert do(messages, verb, Selection(every=True), dry_run=True, limit=1).count == 1
        assert do(messages, verb, ids=["a", "c"], dry_run=True).by_id == {"a": 1, "c": 0}
        assert list(messages.select()) == before

    def test_a_limit(self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str) -> None:
        put(site, app, state, *"abcde")
        assert do(messages, verb, Selection(every=True), limit=0).count == 0
        assert do(messages, verb, Selection(every=True), limit=2).count == 2
        if not _stays(verb):
            assert messages.count(Selection(state=state)) == 3
        assert do(messages, verb, ids=[*"abcde"], limit=1).count == 1
        for wrong in (-1, 1.5, "1", True):
            with pytest.raises(ValueError, match="limit"):
                do(messages, verb, Selection(every=True), limit=wrong)

    @pytest.mark.once
    def test_progress_is_told_and_may_end_it(
        self, site: Site, app: Celery, messages: Messages, verb: Verb, state: str
    ) -> None:
        names = [f"{number}" for number in range(MESSAGES)]
        put(site, app, state, *names, task="mail.send")
        told: list[int] = []

        def tell(count: int) -> None:
            told.append(count)
            if count:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            do(messages, verb, Selection(task="*"), progress=tell)
        assert 0 < told[-1] <= MESSAGES
        if not _stays(verb):
            assert messages.count(Selection(state=state)) == MESSAGES - told[-1]
        rest: list[int] = []
        done = do(messages, verb, Selection(task="*"), progress=rest.append)
        assert rest == sorted(rest)
        # More often than at the end.
        assert any(0 < count < rest[-1] for count in rest)
        assert rest[-1] == done.count == (MESSAGES if _stays(verb) else MESSAGES - told[-1])


@each_verb
class TestEachVerb:
    def test_its_method_is_named_by_the_table(self, messages: Messages, verb: Verb) -> None:
        assert do(messages, verb, Selection(every=True)).verb == verb.name

    def test_another_state_is_a_value_error(self, messages: Messages, verb: Verb) -> None:
        for state in set(OF_MESSAGES) - set(verb.states):
            with pytest.raises(ValueError, match=f"state must be .*{verb.states[0]}.*, not '{state}'"):
                do(messages, verb, Selection(state=state))

    def test_which_state_it_needs(self, messages: Messages, verb: Verb) -> None:
        act = getattr(messages, verb.name)
        for selection in (Selection(every=True), Selection(queue="q"), Selection(task="*")):
            if verb.needs_state:
                with pytest.raises(ValueError, match="say failed or dead"):
                    act(selection)
            else:
                assert act(selection, **ASKED.get(verb.name, {})).count == 0

    def test_other_states_are_left_alone(
        self, site: Site, app: Celery, messages: Messages, verb: Verb
    ) -> None:
        # What is ready would be taken for those.
        # What is ready would be taken with those that come to be unacked or dead.
        for state in sorted(set(OF_MESSAGES) - set(verb.states), key="ready".__eq__):
            put(site, app, state, state)
        before = list(messages.select())
        assert do(messages, verb, Selection(every=True)).count == 0
        assert do(messages, verb, ids=OF_MESSAGES).count == 0
        assert [message.payload for message in messages.select()] == [message.payload for message in before]

    def test_of_a_variable_that_is_none(
        self, site: Site, app: Celery, messages: Messages, verb: Verb
    ) -> None:
        put(site, app, verb.states[0], "a")
        for chosen in (Selection(), Selection(queue=None, task=None)):
            with pytest.raises(ValueError, match=r"say Selection\(every=True\)"):
                do(messages, verb, chosen)
        assert messages.count(Selection(state=verb.states[0])) == 1

    def test_neither_a_selection_nor_ids_is_a_type_error(self, messages: Messages, verb: Verb) -> None:
        for given in ({}, {"ids": ["a"], "selection": Selection()}):
            with pytest.raises(TypeError, match="either a selection or ids"):
                do(messages, verb, **given)
        with pytest.raises(TypeError, match="several, not the str 'abc'"):
            do(messages, verb, ids="abc")


def test_each_filter_is_a_field_of_a_selection() -> None:
    for each in FILTERS:
        assert (
            getattr(replace(Selection(), **cast(Any, {each.name: each.placeholder})), each.name)
            == each.placeholder
        )


def _stays(verb: Verb) -> bool:
    """Whether messages are in the same state afterwards."""
    return verb.name in ("reschedule", "revoke")
