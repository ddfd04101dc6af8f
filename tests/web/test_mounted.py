"""Below a path of another application, under ASGI and WSGI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest
from a2wsgi import ASGIMiddleware
from httpx import Client, WSGITransport
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from kombu_redisdelay.web import create
from tests.cli.site import Site
from tests.web.states import scheduled
from tests.web.tour import tour
from tests.web.viewer import Viewer
from tools.harness.process import wait_until


def test_in_starlette(site: Site) -> None:
    scheduled(site, "a", "b")
    viewer = Viewer(site.app)
    viewer.client = TestClient(Starlette(routes=[Mount("/ops/queues", viewer.app)]))
    tour(viewer, "/ops/queues")
    viewer.close()


PREFIX = "/ops/queues"


@contextmanager
def under_wsgi(site: Site) -> Iterator[Viewer]:
    """Somebody who looks at the page in an application of the old kind."""
    viewer = Viewer(site.app)
    wsgi = ASGIMiddleware(viewer.app)  # type: ignore[arg-type]

    def below(environ, start_response):  # type: ignore[no-untyped-def]
        """As Django, Flask or mod_wsgi mount an application."""
        assert environ["PATH_INFO"].startswith(PREFIX)
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = PREFIX, environ["PATH_INFO"].removeprefix(PREFIX)
        return wsgi(environ, start_response)

    transport = WSGITransport(below)
    viewer.client = Client(transport=transport, base_url="http://testserver", follow_redirects=True)  # type: ignore[assignment]
    yield viewer
    viewer.close()


def test_under_wsgi(site: Site) -> None:
    scheduled(site, "a", "b")
    with under_wsgi(site) as viewer:
        tour(viewer, PREFIX)


def test_what_takes_long_under_wsgi(site: Site, held_back: Event) -> None:
    scheduled(site, "a", "b")
    with under_wsgi(site) as viewer:
        viewer.open(f"{PREFIX}/messages", task="shop.*")
        viewer.press("Cancel all")
        assert viewer.press("Cancel all").heading.startswith("Cancel 2 scheduled messages")
        # The same page, again and again.
        [id] = viewer.app.state.site.works._works
        page = viewer.press("Stop")
        assert "It stops after the step that it is in." in page.text
        held_back.set()
        address = f"{PREFIX}/work?id={id}"
        wait_until(lambda: "Stopped by anybody after 2 messages." in viewer.open(address).text, 60, "the end")
        assert viewer.open(viewer.at.links["Back to the list"]).ids == []


@pytest.mark.parametrize("tenant", ["%5Cevil.example", "%2Fevil.example", "a%3Fb", "a%23b", "%22x", "a%3Bb"])
def test_below_a_path_with_a_parameter(site: Site, tenant: str) -> None:
    """Whatever a client has sent for it, the links of the page lead to this server."""
    page = create(site.app)
    with TestClient(Starlette(routes=[Mount("/{tenant:path}/queues", page)])) as client:
        response = client.get(f"/{tenant}/queues/")
        assert response.status_code == 200
        below = f"/{tenant.removeprefix('%2F')}/queues/"
        addresses = re.findall(r'(?:href|src|action)="([^"#]+)"', response.text)
        assert len(addresses) > 5
        assert all(address.startswith(below) for address in addresses)
        assert f"Path={below.rstrip('/')};" in response.headers["set-cookie"]
    page.state.site.close()


def test_it_closes_with_its_application(site: Site) -> None:
    app = create(site.app)
    with TestClient(app) as client:
        assert client.get("/").status_code == 200
        assert app.state.site._messages is not None
    assert app.state.site._messages is None


def test_without_the_slash_at_the_end(site: Site) -> None:
    viewer = Viewer(site.app)
    client = TestClient(viewer.app, root_path="/ops/queues")
    response = client.get("/ops/queues", headers={"Host": "evil.example"}, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "/ops/queues/")
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ops/queues"):
        pass
    viewer.close()
