"""What tests choose at random: always the same, or with ``REDISDELAY_TESTS=thorough`` something new."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.environments import ENVIRONMENT, THOROUGH, THOROUGHNESS, examples

#: Whether a run tries what no run before has tried. If not, only a change makes a test fail, and no chance.
IS_RANDOM = ENVIRONMENT == THOROUGH

#: Where a random search keeps what has failed. The next one in this checkout tries it first.
KEPT = Path(__file__).parent.parent / ".hypothesis" / "examples"

#: For a test with Hypothesis, which makes what fails as short as it can, for five minutes at most. If pytest
#: ended it meanwhile, Hypothesis would take that for one more failure, try it again, and say of what it does
#: not see again that the test is not repeatable. With more examples it takes longer; ``--timeout`` does not
#: count for a test that has this marker.
may_search_for_long = pytest.mark.timeout(600 * max(1, THOROUGHNESS))


def set_up() -> None:
    """To be called before any test is imported. A busy machine is slow, which is no failure."""
    usual: dict[str, Any] = {
        "deadline": None,
        "print_blob": True,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("fixed", derandomize=True, **usual)
    settings.register_profile("random", database=DirectoryBasedExampleDatabase(KEPT), **usual)
    settings.load_profile("random" if IS_RANDOM else "fixed")


def run_machine(
    machine: type[RuleBasedStateMachine], usual: int, *, name: str = "", **attributes: Any
) -> None:
    """Have *machine* do what Hypothesis wants, again and again.

    Arguments:
        usual: how often in a thorough run.
        name: what tells this run from others of the machine. Each has examples of its own.
        attributes: of the machine.
    """
    # Hypothesis knows it by its name: it has no source.
    run_state_machine_as_test(
        type(f"{machine.__name__} {name}", (machine,), attributes),
        settings=settings(
            max_examples=examples(usual), stateful_step_count=40, suppress_health_check=list(HealthCheck)
        ),
    )


def replay(steps: Callable[[Any], None], machine: type[RuleBasedStateMachine], **attributes: Any) -> None:
    """Have *machine* do some *steps*, and then look at what is left."""
    state = type(machine.__name__, (machine,), attributes)()
    steps(state)
    state.teardown()


def seed(name: str) -> None:
    """Have what this process chooses at random be the same whenever the test with this *name* runs."""
    if not IS_RANDOM:
        random.seed(name)
