"""The table of very many queues: searched, sorted and paged, for a bounded number of commands."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Barrier

import pytest

from kombu_redisdelay.operations.viewers import Cached
from kombu_redisdelay.web.fleet import LEAST_SECONDS, QUEUES_PER_PAGE, Part, seconds_kept
from kombu_redisdelay.web.site import MOST_EXAMINED
from tests.cli.site import QUEUE, Site
from tests.web.states import dead, delivered, ready
from tests.web.viewer import Page, Viewer

COUNT = 2 * QUEUES_PER_PAGE + 30


def add_queues(site: Site, count: int) -> None:
    """Each with as many ready messages as its number has digits, and the first one with ten."""
    with site.redis.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.lpush(f"q{number}", *["{}"] * (10 if number == 0 else len(str(number))))
        pipe.execute()
    site.store.remember(*(f"q{number}" for number in range(count)))


@pytest.fixture
def queues(site: Site) -> None:
    add_queues(site, COUNT)


@pytest.mark.parametrize("name", ["schedule", "dead", "consumers", "limits"])
def test_a_key_of_the_wrong_type_takes_only_its_queue_away(site: Site, viewer: Viewer, name: str) -> None:
    """Another program may use the same names."""
    add_queues(site, 3)
    key = getattr(site.store.keys("q1"), name)
    site.redis.set(key, "x")
    page = viewer.open("/")
    assert queues_of(page) == [QUEUE, "q0", "q2"]
    assert re.search(rf"wrong q1 cannot be read: .*{re.escape(key)}", page.text)


def test_a_history_of_the_wrong_type_takes_nothing_away(site: Site, viewer: Viewer) -> None:
    add_queues(site, 3)
    site.redis.set(site.store.keys("q1").history, "x")
    for sort in ("", "-delivered"):
        assert sorted(queues_of(viewer.open("/", sort=sort))) == [QUEUE, "q0", "q1", "q2"]


def queues_of(page: Page) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/queue\?name=(\w+)', page.source)


def commands(site: Site) -> int:
    return int(site.redis.info("stats")["total_commands_processed"])


@pytest.mark.usefixtures("queues")
class TestPages:
    def test_forward_and_back(self, viewer: Viewer) -> None:
        seen = [queues_of(viewer.open("/"))]
        while "Next page" in viewer.at.links:
            seen.append(queues_of(viewer.open(viewer.at.links["Next page"])))
        # The queue of the app is in front.
        assert [*chain(*seen)] == [QUEUE, *(f"q{number}" for number in range(COUNT))]
        assert [len(some) for some in seen] == [100, 100, 31]
        assert queues_of(viewer.open(viewer.at.links["Previous page"])) == seen[1]
        assert queues_of(viewer.open(viewer.open("/", page="3").links["First page"])) == seen[0]

    @pytest.mark.parametrize(
        ("page", "first"), [("0", QUEUE), ("-1", QUEUE), ("x", QUEUE), ("²", QUEUE), ("99999", "q199")]
    )
    def test_that_is_not_there(self, viewer: Viewer, page: str, first: str) -> None:
        assert queues_of(viewer.open("/", page=page))[0] == first

    def test_sorted_over_all(self, viewer: Viewer) -> None:
        page = viewer.open("/", sort="-ready")
        assert queues_of(page)[:2] == ["q0", "q100"]
        page = viewer.open(page.links["Next page"])
        assert 'aria-sort="descending"' in page.source
        assert queues_of(page)[-1] == "q78"

    def test_sorted_by_the_history(self, site: Site, viewer: Viewer) -> None:
        delivered(site, "x1")
        assert queues_of(viewer.open("/", sort="-delivered"))[:2] == [QUEUE, "q0"]
        assert queues_of(viewer.open("/", sort="delivered", page="9"))[-2:] == ["q229", QUEUE]

    def test_totals_of_all(self, viewer: Viewer) -> None:
        page = viewer.open("/", page="2")
        assert "231 queues, page 2 of 3." in " ".join(page.text.split())
        assert page.links["589"] == "/messages?state=ready"


@pytest.mark.usefixtures("queues")
class TestSearch:
    def test_by_a_part_of_the_name(self, viewer: Viewer) -> None:
        page = viewer.open("/", search="Q22", sort="-queue")
        assert queues_of(page) == [*(f"q{number}" for number in range(229, 219, -1)), "q22"]
        assert "11 of 231 queues." in " ".join(page.text.split())

    def test_stays_when_it_is_sorted_and_paged(self, viewer: Viewer) -> None:
        page = viewer.open("/", search="q1")
        page = viewer.open(page.links["Ready"])
        page = viewer.open(page.links["Next page"])
        assert len(queues_of(page)) == 11
        assert set(queues_of(page)) <= {f"q{number}" for number in range(200) if str(number)[0] == "1"}

    def test_by_the_form(self, viewer: Viewer) -> None:
        viewer.open("/", sort="-ready")
        [form] = [form for form in viewer.at.forms if "search" in dict(form.fields)]
        assert (form.method, form.action) == ("get", "/")
        assert dict(form.fields)["sort"] == "-ready"

    def test_finds_nothing(self, viewer: Viewer) -> None:
        assert "No queue has a name that contains this." in viewer.open("/", search="<b>nothing").text


class TestCost:
    def test_of_ten_viewers(self, site: Site, viewer: Viewer) -> None:
        add_queues(site, MOST_EXAMINED + 1)
        began = commands(site)
        viewer.open("/")
        first = commands(site) - began
        for _ in range(10):
            viewer.open("/", page="2")
        others = commands(site) - began - first
        # The rows are read anew.
        assert others / 10 < first / 3

    def test_the_doctor_is_not_asked_about_very_many(self, site: Site, viewer: Viewer) -> None:
        add_queues(site, MOST_EXAMINED + 1)
        assert viewer.open("/").links["Ask the doctor"] == "/doctor"
        viewer.open("/doctor")
        assert "Ask the doctor" not in viewer.open("/").links
        assert "The doctor has" in viewer.at.text

    @pytest.mark.usefixtures("queues")
    def test_what_was_done_is_seen(self, site: Site, viewer: Viewer) -> None:
        dead(site, "d1", queue="q7")
        assert 'class="dead"' in viewer.open("/").source
        viewer.open("/messages", state="dead")
        viewer.press("Remove all")
        viewer.press("Remove all")
        assert 'class="dead none"' in viewer.open("/").source

    def test_few_queues_are_read_each_time(self, site: Site, viewer: Viewer) -> None:
        for count in (1, 2, 3):
            ready(site, "a")
            assert f"Ready{count}" in "".join(viewer.open("/").text.split())

    @pytest.mark.usefixtures("queues")
    def test_the_time_of_what_is_kept_is_said(self, viewer: Viewer) -> None:
        assert "The numbers above and the order are those of" in viewer.open("/").text


def test_how_long_it_is_kept() -> None:
    assert seconds_kept(QUEUES_PER_PAGE, 3) == 0
    assert seconds_kept(QUEUES_PER_PAGE + 1, 0.1) == LEAST_SECONDS
    assert seconds_kept(QUEUES_PER_PAGE + 1, 3) == 30


def test_what_is_kept_is_read_again_when_it_is_old() -> None:
    values = iter(range(10))
    seconds = {0: 60.0, 1: 0.0, 2: 0.0}
    kept = Cached(lambda: next(values), lambda value, took: seconds[value])
    assert kept.last is None
    assert [kept.get().value for _ in range(2)] == [0, 0]
    kept.forget()
    assert [kept.get().value for _ in range(2)] == [1, 2]
    assert kept.last is not None


def test_what_fails_has_failed_for_all_who_wait() -> None:
    calls: list[int] = []
    all_wait = Barrier(4)

    def read() -> None:
        calls.append(1)
        time.sleep(0.5)
        raise ConnectionError("no reply")

    kept = Cached(read, lambda value, took: 0.0)

    def get() -> None:
        all_wait.wait()
        with pytest.raises(ConnectionError, match="no reply"):
            kept.get()

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(get) for _ in range(4)]:
            each.result()
    assert len(calls) == 1
    # Who asks later, asks anew.
    with pytest.raises(ConnectionError):
        kept.get()
    assert len(calls) == 2


def test_a_page_of_nothing() -> None:
    assert Part.of("7", 0) == Part(1, 1)
