"""`tox -e demo -- --web`: the demo ends with a page on its queues."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil

from tools.harness.process import wait_until

ROOT = Path(__file__).parents[2]
_ADDRESS = re.compile(r"http://\S+")


def test_it_serves_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "output"
    left = tmp_path / "left"
    left.mkdir()
    # Wide enough for the line with the address.
    environment = {**os.environ, "TMPDIR": str(left), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    with output.open("wb") as file:
        command = [sys.executable, "-m", "tools.demo", "--web"]
        demo = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _ADDRESS.search(output.read_text()) or demo.poll() is not None, 60, "its address")
        [url] = _ADDRESS.findall(output.read_text())
        with urlopen(f"{url}messages", timeout=10) as page:
            text = page.read().decode()
        assert re.search(r"\b(400|39\d) scheduled messages", text)
        assert "tools.demo.tasks.remind" in text
        started = psutil.Process(demo.pid).children(recursive=True)
        # A server, two workers with their pools, and the page.
        assert len(started) > 4
        assert any(left.iterdir())
        demo.send_signal(signal.SIGINT)
        assert demo.wait(20) == 0, output.read_text()
    finally:
        # What it has started ends with it.
        demo.kill()
        demo.wait()
    assert "Traceback" not in output.read_text()
    wait_until(lambda: not any(each.is_running() for each in started), 20, "that all it has started is gone")
    assert list(left.iterdir()) == []
