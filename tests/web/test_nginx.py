"""Behind a real nginx, with the configuration of docs/web.rst; and what its manifest for Kubernetes says."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from httpx import Client, ConnectError, get

from kombu_redisdelay.cli.web import command
from tests.cli.site import Site
from tests.cli.test_web import WebPage
from tests.docs.page import DOCS, blocks
from tests.web.states import scheduled
from tests.web.tour import tour
from tests.web.viewer import Viewer
from tools.harness.process import ChildProcess
from tools.harness.redis_server import HOST, RedisServer, free_port
from tools.harness.tls import Tls, new_tls

# Untyped.
yaml: Any = import_module("yaml")

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing")


def of_page(caption: str) -> str:
    """The block of the page with this caption."""
    [found] = [block for block in blocks(DOCS / "web.rst") if block.caption == caption]
    return found.text


class Nginx(ChildProcess):
    """nginx with one `server` of a configuration."""

    def __init__(self, server: str, url: str) -> None:
        super().__init__()
        self.url = url
        paths = (f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = ["daemon off;", "pid pid;", "events {}", "http {", "access_log off;", *paths, server, "}"]
        (self.directory / "nginx.conf").write_text("\n".join(text))

    def command(self) -> Sequence[str]:
        directory = str(self.directory)
        nginx = shutil.which("nginx")
        assert nginx is not None
        return [nginx, "-p", directory, "-c", "nginx.conf", "-e", "stderr"]

    def is_ready(self) -> bool:
        try:
            return get(self.url, verify=False).status_code > 0
        except ConnectError:
            return False


@contextmanager
def visiting(site: Site, page: WebPage, server: str, scheme: str, tls: Tls | None = None) -> Iterator[Viewer]:
    """Somebody who looks at the page through nginx, whose `server` is this."""
    port = free_port()
    server = server.replace("listen 443", f"listen {HOST}:{port}")
    server = server.replace("127.0.0.1:9809", page.url.removeprefix("http://").rstrip("/"))
    url = f"{scheme}://{HOST}:{port}"
    verify = ssl.create_default_context(cafile=str(tls.certificate)) if tls else True
    with (
        Nginx(server, url),
        closing(Viewer(site.app)) as viewer,
        Client(
            base_url=url,
            auth=("ann", "secret"),
            # As a browser says with each form.
            headers={"Origin": url},
            follow_redirects=True,
            verify=verify,
        ) as client,
    ):
        viewer.client = client  # type: ignore[assignment]
        yield viewer


@pytest.fixture
def users(tmp_path: Path) -> str:
    file = tmp_path / "users"
    file.write_text("ann:secret\n")
    return str(file)


@needs_nginx
def test_on_a_name_of_its_own_with_tls(site: Site, server: RedisServer, users: str) -> None:
    scheduled(site, "a", "b")
    with new_tls() as tls, WebPage(server, "--users-file", users) as page:
        block = of_page("/etc/nginx/conf.d/queues.conf")
        for name, path in {"queues.pem": tls.certificate, "queues.key": tls.key}.items():
            block = block.replace(f"/etc/nginx/{name}", str(path))
        with visiting(site, page, block, "https", tls) as viewer:
            tour(viewer, "")
            # It knows that the browser uses TLS.
            assert {cookie.secure for cookie in viewer.client.cookies.jar} == {True}


@needs_nginx
def test_below_a_path(site: Site, server: RedisServer, users: str) -> None:
    scheduled(site, "a", "b")
    with WebPage(server, "--prefix", "/queues", "--users-file", users) as page:
        block = "server { listen 443; " + of_page("in a server") + "}"
        with visiting(site, page, block, "http") as viewer:
            tour(viewer, "/queues")


def test_the_manifest(server: RedisServer, site: Site) -> None:
    deployment = yaml.safe_load(of_page("queues.yaml"))
    service = yaml.safe_load(of_page("queues-service.yaml"))
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    [port] = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == next(each.default for each in command.params if each.name == "port")
    words = container["command"]
    assert words[:5] == ["celery", "-A", "shop", "delayed", "web"]
    # Without the password it would not start.
    with WebPage(server, *words[5:], **_secrets(container)) as page:
        url = page.url.replace("0.0.0.0", HOST)
        assert get(url).status_code == 401
        for name in ("readinessProbe", "livenessProbe"):
            probe = container[name]["httpGet"]
            assert probe["port"] == port["name"]
            # The kubelet asks for the address of the pod.
            asked = get(url.rstrip("/") + probe["path"], headers={"Host": "10.1.2.3:9809"})
            assert asked.status_code == 200


def _secrets(container: dict[str, Any]) -> dict[str, str]:
    """What stands for the values of secrets, but for the broker's URL, which our page has otherwise."""
    return {each["name"]: "secret" for each in container["env"] if each["name"] != "BROKER_URL"}
