"""Takes the pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver

from kombu_redisdelay.web import create
from tools import screenshots
from tools.harness.browser import chromium, missing, scheme, served, size
from tools.harness.redis_server import RedisServer
from tools.screenshots.shop import Shop

LIGHT, DARK = "light", "dark"


@dataclass(frozen=True)
class Picture:
    """A picture of a page: as wide as the window is, and as high as it is at most."""

    name: str
    path: str
    scheme: str = LIGHT
    width: int = 1280
    height: int = 900


PICTURES = (
    Picture("overview-light", "/"),
    Picture("overview-dark", "/", DARK),
    Picture("queue-light", "/queue?name=emails", height=1050),
    Picture("queue-dark", "/queue?name=emails", DARK, height=1050),
    Picture("keys-light", "/keys?name=imports", height=800),
    Picture("keys-dark", "/keys?name=imports", DARK, height=800),
    Picture("scheduled-light", "/messages?queue=emails&before=30m", height=570),
    Picture("scheduled-dark", "/messages?queue=emails&before=30m", DARK, height=570),
    Picture("failed-light", "/failed", height=640),
    Picture("failed-dark", "/failed", DARK, height=640),
    Picture("narrow-light", "/", width=360, height=700),
    Picture("narrow-dark", "/", DARK, width=360, height=700),
)


def take(driver: webdriver.Chrome, url: str, picture: Picture, directory: Path) -> Path:
    """Write a picture.

    Raises:
        RuntimeError: the browser has complaints about the page.
    """
    size(driver, picture.width, 1)
    scheme(driver, picture.scheme)
    driver.get(url + picture.path)
    if complaints := driver.get_log("browser"):
        raise RuntimeError(f"{picture.path}: {complaints}")
    height = driver.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
    size(driver, picture.width, min(height, picture.height))
    file = directory / f"web-{picture.name}.png"
    driver.save_screenshot(str(file))
    return file


@contextmanager
def shop() -> Iterator[str]:
    """The address of the page on the queues of a shop."""
    # As a server for a shop should be, so that the doctor has remarks on the queues alone.
    with RedisServer(appendonly=True) as server, closing(Shop(server)) as shop:
        shop.fill()
        page = create(shop.app)
        with closing(page.state.site), served(page) as url:
            yield url


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=screenshots.__doc__)
    parser.add_argument("directory", type=Path, help="where to write them, for example docs/_static")
    options = parser.parse_args()
    if missing():
        print(f"screenshots: {missing()}", file=sys.stderr)
        return 1
    with shop() as url, chromium() as driver:
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for picture in PICTURES:
            file = take(driver, url, picture, options.directory)
            print(f"{file}: {file.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
