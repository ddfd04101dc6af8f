"""The example for Docker Compose. Without containers: each file is read as its program reads it, and all
services of ours run side by side, as processes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.examples.command_line import refused
from tests.examples.site import EXAMPLES, PATIENCE, Program, environment
from tools.harness.process import ChildProcess, wait_until
from tools.harness.redis_server import HOST, RedisServer, free_port

# Not installed where types are checked.
yaml: Any = import_module("yaml")

HERE = EXAMPLES / "compose"
COMPOSE = yaml.safe_load((HERE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROMETHEUS = yaml.safe_load((HERE / "prometheus.yml").read_text())

#: Port -> the service that listens there.
LISTENING = {
    int(port): name
    for name, service in SERVICES.items()
    for port in re.findall(r"port[= ](\d+)", service.get("command", ""))
} | {6379: "redis", 9090: "prometheus", 3000: "grafana", 9810: "worker"}

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="prometheus is missing (Debian's package prometheus): its configuration was not tried",
)


def test_celery_takes_each_command() -> None:
    commands = [words for name in SERVICES for words in _celery_commands(name)]
    assert len(commands) == 8
    assert refused(commands, HERE) == []


def test_a_wrong_command_is_refused() -> None:
    [why] = refused([["celery", "-A", "shop", "delayed", "exporter", "--prt", "1"]], HERE)
    assert "No such option" in why
    [why] = refused([["celery", "-A", "another_shop", "worker"]], HERE)
    assert "another_shop" in why


def test_who_is_asked_on_a_port_listens_there() -> None:
    asked = [
        (int(port), name)
        for name, service in SERVICES.items()
        for port in re.findall(r"127\.0\.0\.1:(\d+)/", service.get("healthcheck", {}).get("test", ""))
    ]
    for name, service in SERVICES.items():
        asked += [(int(port), name) for port in service.get("expose", ())]
        asked += [(int(port.rpartition(":")[2]), name) for port in service.get("ports", ())]
    for target in _targets():
        name, _, port = target.partition(":")
        asked.append((int(port), name))
    [source] = yaml.safe_load((HERE / "grafana/datasource.yml").read_text())["datasources"]
    url = httpx.URL(source["url"])
    asked.append((url.port or 80, url.host))
    broker = httpx.URL(SERVICES["worker"]["environment"]["BROKER_URL"])
    asked.append((broker.port or 0, broker.host))
    assert len(asked) >= 12
    assert [f"{name}:{port}" for port, name in asked if LISTENING.get(port) != name] == []


def test_what_is_reached_from_outside_is_on_this_machine_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_files_and_volumes_are_there() -> None:
    for service in SERVICES.values():
        for source, *_ in (volume.split(":") for volume in service.get("volumes", ())):
            if source.startswith("./"):
                assert (HERE / source).is_file()
            else:
                assert source in COMPOSE["volumes"]
    copied = re.findall(r"^COPY (\S+)", (HERE / "Dockerfile").read_text(), re.MULTILINE)
    assert f"!{copied[0]}\n" in (HERE / ".dockerignore").read_text()
    assert all((HERE / name).is_file() for name in copied)


def test_services_wait_for_services() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            condition = how["condition"]
            assert condition in ("service_healthy", "service_completed_successfully")
            assert condition != "service_healthy" or "healthcheck" in SERVICES[other]


def test_the_passwords_to_set_are_named_in_the_first_lines() -> None:
    text = (HERE / "compose.yaml").read_text()
    head = text.partition("\nx-shop")[0]
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert variables == {"QUEUES_PASSWORD", "GRAFANA_PASSWORD"}
    assert all(f"{name}=" in head for name in variables)


@pytest.fixture
def prometheus_files(tmp_path: Path) -> Path:
    """As they lie in the container of Prometheus. The command of the service for it writes the alerts."""
    (tmp_path / "package").mkdir()
    shutil.copy(HERE / "prometheus.yml", tmp_path)
    command = SERVICES["monitoring-files"]["command"].replace("/monitoring", str(tmp_path / "package"))
    celery = Path(sys.executable).parent
    variables = environment(HERE)
    variables["PATH"] = f"{celery}:{variables['PATH']}"
    subprocess.run(shlex.split(command), env=variables, check=True)
    mounted = [volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"]]
    assert ["monitoring", "/etc/prometheus/package"] in mounted
    assert ["./prometheus.yml", "/etc/prometheus/prometheus.yml"] in mounted
    assert (tmp_path / "package" / "dashboard.json").read_text().startswith("{")
    return tmp_path


@needs_prometheus
def test_prometheus_takes_its_files(prometheus_files: Path) -> None:
    command = ["promtool", "check", "config", str(prometheus_files / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


class Service(Program):
    """A service as a process, which listens on a port that is free instead of its own."""

    def __init__(self, name: str, server: RedisServer, ready: str, **variables: str) -> None:
        words, *_ = _celery_commands(name)
        words = [re.sub(r"^(?:9808|9809|8080)$", "PORT", word) for word in words]
        found = environment(HERE, BROKER_URL=server.url(), **variables)
        super().__init__(*words, directory=HERE, environment=found, ready=ready)
        # In its container, /tmp is its own.
        self._words = [word.replace("/tmp", str(self.directory)) for word in self._words]
        self._text = "" if ready.startswith("/") else ready

    def is_ready(self) -> bool:
        return self._text in self.log() if self._text else super().is_ready()


class Prometheus(ChildProcess):
    """With the files of the example, but for the addresses: names of containers mean nothing here."""

    def __init__(self, files: Path, targets: Mapping[str, str]) -> None:
        super().__init__()
        self._files = files
        self.url = f"http://{HOST}:{free_port()}"
        config = {**PROMETHEUS, "global": {"scrape_interval": "1s"}}
        config["scrape_configs"] = [
            {"job_name": job["job_name"], "static_configs": [{"targets": [targets[job["job_name"]]]}]}
            for job in PROMETHEUS["scrape_configs"]
        ]
        (files / "prometheus.yml").write_text(yaml.safe_dump(config))

    def command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self._files / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=PATIENCE).status_code == 200
        except httpx.ConnectError:
            return False

    def values(self, query: str) -> list[str]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=PATIENCE).json()
        return [found["value"][1] for found in answer["data"]["result"]]

    def alerts(self) -> set[str]:
        groups = httpx.get(f"{self.url}/api/v1/rules", timeout=PATIENCE).json()["data"]["groups"]
        return {rule["name"] for group in groups for rule in group["rules"]}


@pytest.fixture
def metrics_port() -> str:
    return str(free_port())


@pytest.fixture
def services(server: RedisServer, metrics_port: str) -> Iterator[dict[str, Service]]:
    started = [
        ("worker", "ready.", {"METRICS_PORT": metrics_port}),
        ("beat", "beat: Starting...", {}),
        ("forward", "/healthz", {}),
        ("exporter", "/metrics", {}),
        ("queues", "/healthz", {"REDISDELAY_WEB_PASSWORD": "secret"}),
    ]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Service(name, server, ready, **variables))
            for name, ready, variables in started
        }


@needs_prometheus
def test_all_of_it_works_together(
    services: dict[str, Service], metrics_port: str, prometheus_files: Path, server: RedisServer
) -> None:
    targets = {
        "redisdelay-exporter": services["exporter"].url.removeprefix("http://"),
        "redisdelay-workers": f"{HOST}:{metrics_port}",
    }
    call = [sys.executable, "-m", "celery", "-A", "shop", "call", "shop.remind_later", "--args", '["Ada"]']
    variables = environment(HERE, BROKER_URL=server.url())
    subprocess.run(call, cwd=HERE, env=variables, check=True, capture_output=True)
    with Prometheus(prometheus_files, targets) as prometheus:
        expected = {
            "redisdelay_up": ["1"],
            'redisdelay_queue_messages{state="scheduled"}': ["1"],
            "redisdelay_queue_consumers": ["1"],
            "redisdelay_messages_delivered_total": ["1"],
        }
        for query, values in expected.items():
            wait_until(lambda: prometheus.values(query) == values, 30, query)  # noqa: B023
        assert {"RedisdelayOverdue", "RedisdelayDeadLetters"} < prometheus.alerts()
    page = httpx.get(f"{services['queues'].url}/", auth=("admin", "secret"), timeout=PATIENCE)
    assert page.status_code == 200
    assert "celery" in page.text
    assert httpx.get(f"{services['queues'].url}/", timeout=PATIENCE).status_code == 401


def _celery_commands(service: str) -> list[list[str]]:
    """What a service runs of ours: its command, and what its health check says."""
    found = []
    for text in (
        SERVICES[service].get("command", ""),
        SERVICES[service].get("healthcheck", {}).get("test", ""),
    ):
        words = shlex.split(text)
        if words[:2] == ["sh", "-c"]:
            words = shlex.split(words[2])
            parts = " ".join(words).split(" && ")
            found += [part.partition(" >")[0].split() for part in parts]
        elif words[:1] == ["celery"]:
            found.append(words)
    return found


def _targets() -> list[str]:
    found = []
    for job in PROMETHEUS["scrape_configs"]:
        found += [target for config in job.get("static_configs", ()) for target in config["targets"]]
        for config in job.get("dns_sd_configs", ()):
            found += [f"{name}:{config['port']}" for name in config["names"]]
    return found
