"""Somebody who looks around on the page and acts, wherever it is mounted."""

from __future__ import annotations

from tests.web.viewer import Viewer


def tour(viewer: Viewer, prefix: str) -> None:
    """Look around and act, below *prefix*. There must be a scheduled message ``a``."""
    if prefix:
        # People leave the slash away.
        assert viewer.open(prefix).heading == "Queues"
    page = viewer.open(f"{prefix}/")
    assert page.status == 200
    for path in page.links.values():
        assert path.startswith((f"{prefix}/", "#"))
        assert path.startswith("#") or viewer.open(path).status == 200
    for path in (f"{prefix}/static/live.js", f"{prefix}/static/style.css"):
        assert path in page.source
        assert viewer.client.get(path).status_code == 200
    viewer.open(f"{prefix}/messages")
    viewer.press("Cancel", ["a"])
    assert "Cancelled 1 message." in viewer.press("Cancel").text
    # It is said once.
    assert "Cancelled" not in viewer.open(f"{prefix}/messages").text
    assert {cookie.path for cookie in viewer.client.cookies.jar} == {prefix or "/"}
    assert viewer.open(f"{prefix}/nothing").status == 404
    # A form that comes from another site.
    token = viewer.client.cookies["redisdelay_token"]
    forged = [
        ("redisdelay_token", token),
        ("action", "pause"),
        ("choice", "queue=celery"),
        ("confirmed", "1"),
    ]
    assert viewer.send(f"{prefix}/act", forged, Origin="http://evil.example").status == 403
    assert viewer.client.get(f"{prefix}/healthz").text == "ok\n"
