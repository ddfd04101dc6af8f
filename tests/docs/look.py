"""Looks at each page of the built documentation in Chromium: wide and narrow, light and dark.

    python -m tests.docs.look HTML_DIRECTORY [PICTURE_DIRECTORY] [PAGE...]

Prints what runs off the edge of a page: an element that reaches beyond the window and is not in a box of its
own that can be scrolled. Ends with 1 if there is any.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions

_WIDTHS = (1400, 360)
_HEIGHT = 900

_BEYOND = """
const width = document.documentElement.clientWidth, found = [];
for (const element of document.querySelectorAll("article *")) {
  const box = element.getBoundingClientRect();
  if (!box.width || (box.right <= width + 1 && box.left >= -1)) continue;
  let inside = element.parentElement, scrolls = false;
  // The theme lets the article itself be scrolled, where it is narrow. That is no box of the element's own.
  while (inside.tagName !== "ARTICLE" && !scrolls) {
    scrolls = /auto|scroll/.test(getComputedStyle(inside).overflowX)
      && inside.getBoundingClientRect().right <= width + 1;
    inside = inside.parentElement;
  }
  const text = element.textContent.slice(0, 60);
  if (!scrolls) found.push(`${element.tagName} ${Math.round(box.right - width)} px: ${text}`);
}
const most = document.documentElement.scrollWidth - width;
return [most, found.slice(0, 4)];
"""


def _look(html: Path, pictures: Path | None, names: list[str]) -> int:
    options = ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1"):
        options.add_argument(argument)
    bad = 0
    with Chrome(options=options) as driver:
        for width in _WIDTHS:
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False},
            )
            for theme in ("light", "dark"):
                for page in sorted(html.glob("*.html")):
                    if names and page.stem not in names:
                        continue
                    driver.get(page.as_uri())
                    driver.execute_script("document.body.dataset.theme = arguments[0]", theme)
                    most, beyond = driver.execute_script(_BEYOND)
                    if most > 0 or beyond:
                        bad += 1
                        print(f"{page.stem} at {width} px, {theme}: {most} px", *beyond, sep="\n    ")
                    if pictures:
                        shot = driver.execute_cdp_cmd(
                            "Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"}
                        )
                        picture = pictures / f"{page.stem}-{width}-{theme}.png"
                        picture.write_bytes(b64decode(shot["data"]))
    return bad


if __name__ == "__main__":
    html, *rest = sys.argv[1:]
    pictures = Path(rest[0]) if rest else None
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    sys.exit(1 if _look(Path(html), pictures, rest[1:]) else 0)
