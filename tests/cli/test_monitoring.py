"""The dashboard and the alerts that the package brings, and `celery delayed exporter`, which prints them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from celery import Celery
from kombu.entity import Queue
from prometheus_client import REGISTRY

from kombu_redisdelay import metrics
from tests.cli.site import QUEUE, Site, run_delayed
from tests.cli.test_exporter import exported, scrape

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kombu_redisdelay"
ALERTS = PACKAGE / "monitoring" / "alerts.yml"
DASHBOARD = PACKAGE / "monitoring" / "dashboard.json"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing (Debian's package prometheus): the alerts were not checked",
)


@pytest.fixture
def served(site: Site) -> set[str]:
    """The names of all metrics that the exporter and a worker serve."""
    # Some are of queues with a bound, or of fair ones, alone.
    site.app.conf.task_queues = [
        Queue(QUEUE, max_length=10, queue_arguments={"x-overflow": "reject-publish"})
    ]
    site.text("fair", "-Q", QUEUE)
    metrics.consuming(QUEUE)
    metrics.delivered(QUEUE, 1)
    metrics.late(QUEUE, 0.1)
    metrics.unique_conflict(QUEUE, "dropped")
    metrics.task_ended("shop.close", "failed", "KeyError", 0.1, 0.2)
    metrics.watch_pool(int, int)
    metrics.refused("busy", False)
    return {name.partition("{")[0] for name, _ in {**exported(site), **scrape(REGISTRY)}}


def test_the_dashboard_uses_all_metrics_and_no_others(served: set[str]) -> None:
    used = _metrics(" ".join(_expressions(json.loads(DASHBOARD.read_text()))))
    assert used <= served
    # But for what only helps to compute others.
    assert {name for name in served - used if not name.endswith(("_created", "_sum", "_count"))} == set()


def test_alerts_use_only_metrics_that_exist(served: set[str]) -> None:
    used = _metrics(ALERTS.read_text())
    assert len(used) >= 8
    assert used <= served


def test_the_dashboard_tells_exporters_and_workers_apart() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert names == {"datasource", "job", "instance", "worker", "queue"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            selectors = re.findall(r"redisdelay_\w+(\{[^}]*\})?", expression)
            for selector in selectors:
                assert re.search(r'instance=~"\$(instance|worker)"', selector), expression
            # What two of them say is added only for a histogram, which is of all workers together.
            assert "{{instance}}" in target["legendFormat"] or "_bucket{" in expression, expression


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(places)) == len(places)


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [("check", "rules", str(ALERTS)), ("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))],
    ids=["rules", "series"],
)
def test_prometheus_takes_the_alerts(words: tuple[str, ...]) -> None:
    result = subprocess.run(("promtool", *words), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_is_tested_with_series() -> None:
    names = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    fires = re.findall(
        r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels",
        Path(__file__).with_name("alerts_test.yml").read_text(),
    )
    assert set(fires) == names


@pytest.mark.parametrize(("option", "file"), [("--dashboard", DASHBOARD), ("--alerts", ALERTS)])
def test_they_are_printed_without_a_broker(option: str, file: Path) -> None:
    app = Celery(broker="redisdelay://127.0.0.1:1/0", set_as_current=False)
    result = run_delayed(app, "exporter", option)
    assert (result.exit_code, result.stdout) == (0, file.read_text())


def test_they_are_printed_without_prometheus_client() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from celery import Celery\n"
        "from tests.cli.site import run_delayed\n"
        "print(run_delayed(Celery(set_as_current=False), 'exporter', '--alerts').stdout, end='')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout == ALERTS.read_text()


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["kombu_redisdelay"].split()
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == packed
    assert {ALERTS, DASHBOARD} < packed


def _metrics(text: str) -> set[str]:
    return set(re.findall(r"\bredisdelay_\w+", text))


def _expressions(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("expr", "definition", "query") and isinstance(value, str):
                yield value
            yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)
