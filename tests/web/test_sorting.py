"""Lists in either order, and the table of queues by each of its columns."""

from __future__ import annotations

import re

import pytest

from tests.cli.site import Site
from tests.web.states import dead, ready, scheduled
from tests.web.viewer import Page, Viewer


def queues_of(page: Page) -> list[str]:
    """The queues of the table, from top to bottom."""
    return re.findall(r'<th scope="row"><a href="/queue\?name=(\w+)', page.source)


def sorted_by(page: Page) -> dict[str, str]:
    """The columns that say that the table is sorted by them -> how."""
    found = re.findall(r'aria-sort="(\w+)">(?:<a [^>]*>)?([^<]*)', page.source)
    return {column: how for how, column in found}


@pytest.fixture
def queues(site: Site) -> None:
    """Four queues. Two of them have nothing scheduled."""
    ready(site, "r1", "r2", "r3", queue="q2")
    ready(site, "r4", queue="q10")
    scheduled(site, "s1", queue="q2", seconds=7200)
    scheduled(site, "s2", "s3", queue="q1", seconds=3600)
    dead(site, "d", queue="q3")
    for queue in ("q2", "q10", "q3"):
        site.store.remember(queue)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    ("sort", "expected", "column", "how"),
    [
        ("", ["q1", "q2", "q3", "q10"], "Queue", "ascending"),
        ("nonsense", ["q1", "q2", "q3", "q10"], "Queue", "ascending"),
        ("-queue", ["q10", "q3", "q2", "q1"], "Queue", "descending"),
        ("-ready", ["q2", "q10", "q1", "q3"], "Ready", "descending"),
        ("ready", ["q1", "q3", "q10", "q2"], "Ready", "ascending"),
        ("-dead", ["q3", "q1", "q2", "q10"], "Dead", "descending"),
        ("due", ["q1", "q2", "q3", "q10"], "Next due", "ascending"),
        ("-due", ["q2", "q1", "q3", "q10"], "Next due", "descending"),
    ],
)
def test_the_table_of_queues(viewer: Viewer, sort: str, expected: list[str], column: str, how: str) -> None:
    page = viewer.open("/", sort=sort)
    assert [name for name in queues_of(page) if name.startswith("q")] == expected
    assert sorted_by(page) == {column: how}


@pytest.mark.usefixtures("queues")
def test_a_heading_is_pressed_and_pressed_again(viewer: Viewer) -> None:
    page = viewer.open(viewer.open("/").links["Dead"])
    assert sorted_by(page) == {"Dead": "descending"}
    assert sorted_by(viewer.open(page.links["Dead"])) == {"Dead": "ascending"}


def all_ids(viewer: Viewer, page: Page) -> list[str]:
    """Of this page and all that follow."""
    ids = page.ids
    while "Next page" in page.links:
        page = viewer.open(page.links["Next page"])
        ids += page.ids
    return ids


def test_scheduled_messages(viewer: Viewer, site: Site) -> None:
    ids = [f"m{number:03}" for number in range(120)]
    for number, id in enumerate(ids):
        scheduled(site, id, queue=f"q{number % 4}", seconds=3600 + 60 * number)
    page = viewer.open("/messages")
    assert sorted_by(page) == {"Due": "ascending"}
    page = viewer.open(page.links["Due"])
    assert (sorted_by(page), "The last one first." in page.text) == ({"Due": "descending"}, True)
    assert all_ids(viewer, page) == ids[::-1]
    assert viewer.open(page.links["Due"]).ids == ids[:50]
    # After an action it is the same list in the same order.
    viewer.open("/messages", order="last", before="3h")
    viewer.press("Cancel", [viewer.at.ids[0]])
    page = viewer.press("Cancel")
    assert page.ids[0] == ids[118]
    assert sorted_by(page) == {"Due": "descending"}


def test_dead_letters(viewer: Viewer, site: Site) -> None:
    ids = [f"m{number:03}" for number in range(120)]
    dead(site, *ids)
    page = viewer.open("/messages", state="dead", queue="celery")
    assert sorted_by(page) == {"Since": "ascending"}
    page = viewer.open(page.links["Since"])
    assert (page.ids, sorted_by(page)) == (ids[:69:-1], {"Since": "descending"})
    # Those that come meanwhile are on the first page, and shift nothing.
    dead(site, "new1", "new2")
    assert all_ids(viewer, page) == ids[::-1]
    assert viewer.open("/messages", state="dead", queue="celery", order="last").ids[:2] == ["new2", "new1"]


def test_only_what_is_sorted_says_so(viewer: Viewer, site: Site) -> None:
    for queue in ("a", "b"):
        dead(site, f"d1{queue}", f"d2{queue}", queue=queue)
        ready(site, f"r{queue}", queue=queue)
    page = viewer.open("/messages", state="dead", order="last")
    assert page.ids == ["d2a", "d1a", "d2b", "d1b"]
    assert (sorted_by(page), "Queue by queue, the newest one first" in page.text) == ({}, True)
    assert sorted_by(viewer.open("/messages", state="ready")) == {}
    assert sorted_by(viewer.open("/messages", state="ready", queue="a")) == {"Position": "ascending"}
