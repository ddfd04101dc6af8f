"""Resolves our requirements together with those of well-known applications that use Celery. ``tox -e
applications`` runs it: it needs the network, and depends on releases of others.

Beside a package that asks for too much, the resolver goes back to an old release of an application, or finds
nothing. So each is resolved alone, then with all that we may bring, and has to have the same version both
times.
"""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: With the extras that they say they need for Celery.
APPLICATIONS = (
    *("apache-airflow[celery]", "apache-superset", "dagster-celery", "galaxy-app", "indico"),
    *("mayan-edms", "nautobot", "pretalx", "pretix", "weblate"),
)

#: With this Python, each of them has a release of this year.
PYTHON = "3.12.9"

#: How many are resolved at a time. Most of it is waiting for the network.
AT_A_TIME = 4


def main() -> None:
    parser = ArgumentParser(prog="tox -e applications --", description=__doc__)
    parser.add_argument("applications", nargs="*", default=APPLICATIONS, help="Only these.")
    applications = parser.parse_args().applications
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        problems = list(pool.map(problem, applications))
    found = [text for text in problems if text]
    sys.exit("\n\n".join(found) if found else None)


def problem(application: str) -> str:
    """What is wrong beside *application*; empty if nothing is."""
    name = application.partition("[")[0]
    try:
        alone = resolve(application)
        both = resolve(application, f"kombu-redisdelay[all] @ {ROOT.as_uri()}")
    except Unsolvable as exc:
        return f"{application}: no solution.\n{exc}"
    if alone[name] != both[name]:
        return f"{application}: {alone[name]} alone, {both[name]} beside us"
    versions = (f"{each} {both[each]}" for each in ("celery", "kombu", "redis"))
    print(f"{name} {both[name]} with {', '.join(versions)}", flush=True)
    return ""


class Unsolvable(Exception):
    """There are no versions that go together, or the network is away. The error is what uv said."""


def resolve(*requirements: str) -> dict[str, str]:
    """Distribution -> its version, as uv would install these *requirements*."""
    command = ("uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--python-version")
    done = subprocess.run(
        [*command, PYTHON], input="\n".join(requirements), capture_output=True, text=True, cwd=ROOT.anchor
    )
    if done.returncode:
        raise Unsolvable(done.stderr.strip())
    return versions_in(done.stdout.splitlines())


def versions_in(lines: Iterable[str]) -> dict[str, str]:
    """Distribution -> its version, of a list of requirements."""
    found = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


if __name__ == "__main__":
    main()
