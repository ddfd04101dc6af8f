"""Where each part of the suite runs: in every environment of ``tox.ini`` in which it can fail differently."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.harness.server_binary import servers

TESTS = Path(__file__).parent

OLDEST, BETWEEN, NEWEST, THOROUGH = "oldest", "between", "newest", "thorough"

#: What this environment is among those of the matrix. Each has another release of kombu, Celery and redis-py.
#: ``REDISDELAY_TESTS=thorough`` runs everything with any Python, and ``newest`` all but what is marked so.
ENVIRONMENT = os.environ.get("REDISDELAY_TESTS") or (
    OLDEST if sys.version_info < (3, 11) else BETWEEN if sys.version_info < (3, 13) else NEWEST
)
#: All else runs here, too: it depends on no release.
RUNS_THE_REST = ENVIRONMENT in (NEWEST, THOROUGH)

#: The markers of tests that do not run here. ``once`` is for what depends on no release in a part that does.
#: ``thorough`` is for breadth, which ``tox -e thorough`` tries: more servers, more rows of a table, and our
#: tools for development in full. Without it, something cheaper still fails if the same code is broken.
WITHOUT = [
    *([] if RUNS_THE_REST else ["once"]),
    *([] if ENVIRONMENT == THOROUGH else [THOROUGH]),
]

#: What depends on the releases of kombu and redis-py: folders, and the files beside them.
_EVERYWHERE = ("transport", "test_*.py")

#: What depends on the release of Celery, on what an old redis-py or an old Redis says, or on a worker that
#: really runs. What is right with the oldest releases and with the newest is so between them.
_ON_BOTH_ENDS = (
    *("broker", "cli/test_group.py", "cli/test_processes.py", "cluster", "end_to_end", "operations"),
    "sentinel",
)

#: Of what runs everywhere, what is right between the oldest releases and the newest if it is right with both.
_NOT_BETWEEN = (
    "test_registration.py",
    *(
        f"transport/test_{name}.py"
        for name in (
            *("batch", "batch_errors", "bounds", "conflict", "cycles", "foreign", "fork", "polled"),
            *("invariant", "limits", "malformed", "routing", "sizes", "woken_fleet"),
        )
    ),
)

#: Of all these, what depends on none of it. All else is in no list, and runs once: the page, docs ...
_ONCE = (
    *("broker/server/test_noscript.py", "broker/test_wrong_type.py"),
    *("broker/test_forbidden.py", "broker/test_lost_keys.py"),
    # The same scripts are tried case by case, and by broker/test_invariant.py in all orders.
    *(f"broker/test_{name}_invariant.py" for name in ("fair", "limits", "unique", "unknown")),
    *("end_to_end/fuzz", "end_to_end/test_permissions_on_many.py"),
    *(f"operations/test_{name}.py" for name in ("deadline", "patterns", "race", "tables")),
    *("sentinel/test_hanging.py", "sentinel/test_workers.py"),
)


def runs_here(path: Path) -> bool:
    """Whether the tests of a folder, or of a file, run in this environment."""
    if RUNS_THE_REST or not path.is_relative_to(TESTS) or path == TESTS:
        return True
    if path.is_file() and not path.name.startswith("test_"):
        return True
    inside = path.relative_to(TESTS)
    parts = (*_EVERYWHERE, *(_ON_BOTH_ENDS if ENVIRONMENT == OLDEST else ()))
    without = (*_ONCE, *(_NOT_BETWEEN if ENVIRONMENT == BETWEEN else ()))
    return not any(inside.is_relative_to(each) for each in without) and any(
        # A folder is looked into if one of its files is meant.
        inside.is_relative_to(part)
        or Path(part).is_relative_to(inside)
        or (len(inside.parts) == 1 and inside.match(part))
        for part in parts
    )


#: With another number, Hypothesis tries so many times as many examples as usual.
THOROUGHNESS = float(os.environ.get("REDISDELAY_EXAMPLES", 1))

#: Of the examples of ``tox -e thorough``, so many are tried in each run: they are other ones each time. What
#: depends on a release shows in few of them.
_SHARE = {THOROUGH: 1, NEWEST: 0.25}.get(ENVIRONMENT, 0.1)


def examples(usual: int) -> int:
    """How many examples to try, or what else is made at random."""
    return max(1, round(usual * THOROUGHNESS * _SHARE))


SERVER = "server"
CLUSTER = "cluster"

#: With the oldest redis-py and the newest, which find the servers of a cluster in different ways.
HAS_CLUSTERS = ENVIRONMENT != BETWEEN

#: Where tests run that are for one server and for a cluster, besides. Above the way to the servers, a cluster
#: is the same with each redis-py.
CLUSTERS = [CLUSTER] if RUNS_THE_REST else []

#: Whether servers can be reached through proxies: Redis 6.2 cannot choose the address that it connects from.
PROXIES = not servers()[0].version.startswith("6.")
