"""In other applications, as docs/web.rst says: its files are written into a folder, and served."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from httpx import Client, ConnectError, get

from tests.cli.site import Site
from tests.docs.page import DOCS, blocks
from tests.web.states import scheduled
from tests.web.tour import tour
from tests.web.viewer import Page, Viewer
from tools.harness.process import ChildProcess
from tools.harness.redis_server import HOST, RedisServer, free_port

ROOT = Path(__file__).parents[2]
PREFIX = "/queues"
LOGIN = ("ann", "secret")
PORT = "PORT"

#: What serves each file of the page, in which the port takes the place of PORT.
SERVED = {
    "main.py": ["uvicorn", "--port", PORT, "main:app"],
    "shop/asgi.py": ["uvicorn", "--port", PORT, "shop.asgi:application"],
    "shop/wsgi.py": ["django", "runserver", "--noreload", PORT],
    "web.py": ["flask", "--app", "web", "run", "--port", PORT],
}


def _write(folder: Path, page: str, name: str, server: RedisServer) -> None:
    """Write a file of a page into the folder."""
    # The one with tenants comes later.
    block, *_ = (block for block in blocks(DOCS / f"{page}.rst") if block.caption == name)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(block.text.replace("redisdelay://localhost:6379/0", server.url()))


def _write_project(folder: Path, server: RedisServer) -> None:
    """A project of Django, with Celery as docs/frameworks.rst has it."""
    subprocess.run([sys.executable, "-m", "django", "startproject", "shop", "."], cwd=folder, check=True)
    for name in ("shop/celery.py", "shop/__init__.py"):
        _write(folder, "frameworks", name, server)
    with (folder / "shop/settings.py").open("a") as settings:
        settings.write(f"CELERY_BROKER_URL = {server.url()!r}\n")


class Application(ChildProcess):
    """One of the applications, on a port."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        super().__init__()
        port = str(free_port())
        self._command = [port if word == PORT else word for word in command]
        self._folder = folder
        self.url = f"http://{HOST}:{port}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", *self._command]

    def environment(self) -> Mapping[str, str]:
        path = os.pathsep.join([str(self._folder), str(ROOT)])
        return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "shop.settings"}

    def working_directory(self) -> Path:
        return self._folder

    def is_ready(self) -> bool:
        try:
            return get(f"{self.url}{PREFIX}/healthz").text == "ok\n"
        except ConnectError:
            return False


@contextmanager
def visiting(site: Site, url: str) -> Iterator[Viewer]:
    """Somebody who may come, and looks at the page through its application."""
    with (
        closing(Viewer(site.app)) as viewer,
        # The header is that of a browser's forms.
        Client(base_url=url, auth=LOGIN, headers={"Origin": url}, follow_redirects=True) as client,
    ):
        viewer.client = client  # type: ignore[assignment]
        yield viewer


@pytest.mark.parametrize("file", SERVED)
def test_it_works_in(file: str, site: Site, server: RedisServer, tmp_path: Path) -> None:
    scheduled(site, "a", "b")
    if file.startswith("shop/"):
        _write_project(tmp_path, server)
    _write(tmp_path, "web", file, server)
    with Application(SERVED[file], tmp_path) as application, visiting(site, application.url) as viewer:
        tour(viewer, PREFIX)
        # It has a login of its own, and the rest of the application goes its own way.
        assert get(f"{application.url}{PREFIX}/").status_code == 401
        if file.startswith("shop/"):
            assert "Django administration" in viewer.client.get("/admin/login/").text
        else:
            assert viewer.client.get("/messages").status_code == 404


_USERS = """
from django.contrib.auth.models import User
for name in ("ann", "bob", "eve"):
    User.objects.create_user(name, password="secret", is_staff=name != "eve", is_superuser=name == "ann")
"""


def test_the_staff_of_django(site: Site, server: RedisServer, tmp_path: Path) -> None:
    scheduled(site, "a")
    _write_project(tmp_path, server)
    _write(tmp_path, "frameworks", "shop/asgi.py", server)
    for command in (["migrate", "-v0"], ["shell", "-c", _USERS]):
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        subprocess.run([sys.executable, "manage.py", *command], cwd=tmp_path, check=True, env=environment)
    with Application(SERVED["shop/asgi.py"], tmp_path) as application:
        address = f"{application.url}{PREFIX}/messages"

        def buttons_of(name: str) -> set[str] | None:
            """What somebody can press; ``None`` if they may not come."""
            with Client(headers={"Origin": application.url}, follow_redirects=True) as client:
                login = f"{application.url}/admin/login/"
                client.get(login)
                token = client.cookies["csrftoken"]
                fields = {"username": name, "password": "secret", "csrfmiddlewaretoken": token}
                client.post(login, data=fields)
                answer = client.get(address)
                return None if "/admin/login/" in str(answer.url) else Page(answer).buttons

        assert get(address).headers["location"] == "/admin/login/?next=/queues/"
        assert buttons_of("eve") is None
        assert buttons_of("bob") == set()
        assert "Cancel" in (buttons_of("ann") or ())


def test_each_recipe_is_tried() -> None:
    recipes = {block.caption for block in blocks(DOCS / "web.rst") if block.language == "python"}
    assert recipes == set(SERVED)
