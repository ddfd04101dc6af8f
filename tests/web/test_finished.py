"""Finished tasks on the page."""

from __future__ import annotations

from tests.cli.site import QUEUE, Site
from tests.finished import keep_finished
from tests.web.viewer import Viewer


def test_the_list_and_one_of_it(viewer: Viewer, site: Site) -> None:
    keep_finished(site.store, QUEUE, "a")
    keep_finished(site.store, QUEUE, "b", ran=90.0, outcome="failed", error="<b>Error", task="<script>")
    page = viewer.open("/messages", state="finished")
    assert {"a", "b"} <= page.links.keys()
    assert "2 finished tasks." in page.text
    assert "1m30s" in page.text
    assert "<b>Error" in page.text
    assert "script" not in page.elements[page.elements.index("main") :]
    assert {"a", "b"} & viewer.open("/messages", state="finished", slower="10s").links.keys() == {"b"}
    found = [said for said in viewer.open("/messages", state="finished", order="last").links if said in "ab"]
    assert found == ["b", "a"]
    assert "not a length of time" in viewer.open("/messages", state="finished", slower="soon").text
    page = viewer.open("/message", id="b")
    assert "with <b>Error, try 1, waited 250ms, ran 1m30s" in page.text
    assert "Published" not in page.text
