"""Chromium, driven by Selenium, and the page on a port for it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tools.harness.process import wait_until

#: What keeps Chromium from asking anything of the network, and from needing a user of its own.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def missing() -> str:
    """Why there is no browser here; empty if there is one."""
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(programs)}" if programs else ""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    options = Options()
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    # axe-core takes half a minute for a long page on a machine that is busy.
    driver.set_script_timeout(120)
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, 10, "that it serves")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def size(driver: webdriver.Chrome, width: int, height: int) -> None:
    """The size of the page, as on a telephone if it is small."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def scheme(driver: webdriver.Chrome, name: str) -> None:
    """Whether the viewer likes it "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def run(driver: webdriver.Chrome, script: str) -> Any:
    """What a script returns that runs in the page, at one moment of it."""
    return driver.execute_script(script)


def click(driver: webdriver.Chrome, selector: str) -> None:
    """Click on the first element, which gets the focus. A page that brings itself up to date may have another
    one in the next moment, so all of this is one script."""
    run(driver, f"const it = document.querySelector({selector!r}); it.focus(); it.click()")


def seen(driver: webdriver.Chrome, selector: str, what: str = "textContent") -> str | None:
    """The text of the first element, or another property; ``None`` if there is no such element."""
    value = run(driver, f"return document.querySelector({selector!r})?.{what}")
    return None if value is None else str(value).strip()


def wait_for(driver: webdriver.Chrome, selector: str, text: str) -> None:
    """Wait until an element has this text."""
    wait_until(lambda: seen(driver, selector) == text, 60, f"that {selector} says {text!r}")


#: Returns what text has too little contrast with what is behind it (WCAG 2.2, AA).
PALE = """
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const found = parts(getComputedStyle(element).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const pale = [];
const look = (element, style, text) => {
  const [one, other] = [light(parts(style.color)), light(ground(element))].sort((a, b) => b - a);
  const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < needed) pale.push(`${text.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
};
for (const element of document.querySelectorAll("body *")) {
  if (!element.checkVisibility()) continue;
  for (const node of element.childNodes) {
    if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
    look(element, getComputedStyle(element), node.data);
  }
  if (element.placeholder) look(element, getComputedStyle(element, "::placeholder"), element.placeholder);
}
return pale;
"""

#: Returns what a screen reader cannot name, and ids that are there twice.
NAMELESS = """
const wrong = [];
for (const each of document.querySelectorAll("input:not([type=hidden]), select, button, a")) {
  const name = each.getAttribute("aria-label") || each.labels?.[0]?.textContent || each.textContent;
  if (!name.trim()) wrong.push(each.outerHTML.slice(0, 100));
}
const ids = Array.from(document.querySelectorAll("[id]"), (each) => each.id);
wrong.push(...ids.filter((id, index) => ids.indexOf(id) !== index));
if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
if (!document.documentElement.lang) wrong.push("no language");
if (!document.querySelector("main")) wrong.push("no main");
for (const table of document.querySelectorAll("table")) {
  if (table.querySelector("th:not([scope])")) wrong.push("a th without scope");
}
return wrong;
"""
