"""What the README says: its links lead somewhere, its commands are commands, its Python runs."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest
from kombu import pools

from kombu_redisdelay import Messages, Selection
from tests.examples.command_line import refused
from tests.examples.site import EXAMPLES, ROOT
from tools.harness.redis_server import RedisServer
from tools.release.readme import broken_links, links

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def urls() -> dict[str, str]:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["metadata"]["project_urls"].strip().splitlines()
    return dict(line.split(" = ", 1) for line in lines)


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md"])
def test_links_lead_somewhere(name: str, urls: dict[str, str]) -> None:
    text = (ROOT / name).read_text()
    ours = tuple(urls[which] + "/" for which in ("Source", "Documentation"))
    assert all(link.startswith(ours) for link in links(text))
    assert list(broken_links(text, urls, ROOT)) == []


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "RELEASING.md", "VERSIONS.md", "CHANGELOG.md", "examples/README.md"]
)
def test_links_of_files_that_are_read_here_lead_to_files(name: str) -> None:
    for link in links((ROOT / name).read_text()):
        if not link.startswith("https://"):
            assert (ROOT / name).parent.joinpath(link).exists(), link


@pytest.mark.parametrize(
    "link",
    [
        "docs/web.rst",
        "{Source}/blob/main/docs/nothing.rst",
        "{Documentation}/en/latest/nothing.html",
        "{Documentation}/web.html",
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, urls: dict[str, str]) -> None:
    [line] = broken_links(f"[it]({link.format(**urls)})", urls, ROOT)
    assert link.format(**urls) in line


def test_its_commands_are_commands() -> None:
    lines = re.findall(r"^    (celery .*)", README, re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) >= 8
    assert refused(commands, EXAMPLES / "compose") == []


def test_ci_runs_its_test_command() -> None:
    [line] = re.findall(r"^Run the tests:\n\n    (.*)", README, re.MULTILINE)
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == line


def test_its_python_runs(server: RedisServer) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    assert "redisdelay://localhost:6379/0" in code
    names: dict[str, object] = {"__name__": "shop"}
    # A producer of another test has noted the queue, in a server that has forgotten it since.
    pools.reset()
    exec(code.replace("redisdelay://localhost:6379/0", server.url()), names)
    [call] = re.findall(r"`(remind\.apply_async\(.*?\))`", README)
    exec(call, names)
    with Messages(server.url()) as delayed:
        [message] = delayed.select(Selection(state="scheduled"))
    assert message.task == "shop.remind"
    pools.reset()


def test_pictures_are_in_the_repository() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\([^)]*/raw/main/([^)]+)\)", README)
    assert len(pictures) == 2
    assert all(Path(ROOT / picture).stat().st_size for picture in pictures)
