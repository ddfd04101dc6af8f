"""Below a path of another application, under ASGI and WSGI."""

from __future__ import annotations

from a2wsgi import ASGIMiddleware
from httpx import Client, WSGITransport
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from kombu_redisdelay.web import create
from tests.cli.site import Site
from tests.web.states import scheduled
from tests.web.tour import tour
from tests.web.viewer import Viewer


def test_in_starlette(site: Site) -> None:
    scheduled(site, "a", "b")
    viewer = Viewer(site.app)
    viewer.client = TestClient(Starlette(routes=[Mount("/ops/queues", viewer.app)]))
    tour(viewer, "/ops/queues")
    viewer.close()


def test_under_wsgi(site: Site) -> None:
    scheduled(site, "a", "b")
    viewer = Viewer(site.app)
    wsgi = ASGIMiddleware(viewer.app)  # type: ignore[arg-type]

    def below(environ, start_response):  # type: ignore[no-untyped-def]
        """As Django, Flask or mod_wsgi mount an application."""
        prefix = "/ops/queues"
        assert environ["PATH_INFO"].startswith(prefix)
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = prefix, environ["PATH_INFO"].removeprefix(prefix)
        return wsgi(environ, start_response)

    transport = WSGITransport(below)
    viewer.client = Client(transport=transport, base_url="http://testserver", follow_redirects=True)  # type: ignore[assignment]
    tour(viewer, "/ops/queues")
    viewer.close()


def test_it_closes_with_its_application(site: Site) -> None:
    app = create(site.app)
    with TestClient(app) as client:
        assert client.get("/").status_code == 200
        assert app.state.site._opened
    assert not app.state.site._opened
