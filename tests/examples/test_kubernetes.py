"""The example for Kubernetes: what its files say of each other holds, and celery takes each command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.examples.command_line import refused
from tests.examples.site import EXAMPLES
from tests.permissions import documented_rules

# Not installed where types are checked.
yaml: Any = import_module("yaml")

HERE = EXAMPLES / "kubernetes"
KUSTOMIZATION = HERE / "kustomization.yaml"
RESOURCES: list[dict[str, Any]] = [
    resource
    for file in sorted(HERE.glob("*.yaml"))
    if file != KUSTOMIZATION
    for resource in yaml.safe_load_all(file.read_text())
]
WORKLOADS = [resource for resource in RESOURCES if resource["kind"] in ("Deployment", "StatefulSet")]
SERVICES = [resource for resource in RESOURCES if resource["kind"] == "Service"]

each_workload = pytest.mark.parametrize(
    "workload", WORKLOADS, ids=[workload["metadata"]["name"] for workload in WORKLOADS]
)


def test_all_files_are_applied() -> None:
    named = yaml.safe_load(KUSTOMIZATION.read_text())["resources"]
    assert sorted(named) == sorted(file.name for file in HERE.glob("*.yaml") if file != KUSTOMIZATION)
    assert len(WORKLOADS) == 6


def test_celery_takes_each_command() -> None:
    commands = [command for workload in WORKLOADS for command in _celery_commands(workload)]
    assert len(commands) == 6
    # The app is that of the image.
    assert refused(commands, EXAMPLES / "compose") == []


@each_workload
def test_its_pods_may_do_little(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert _container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_nobody_else_reaches_redis() -> None:
    [policy] = [resource for resource in RESOURCES if resource["kind"] == "NetworkPolicy"]
    [rule] = policy["spec"]["ingress"]
    [selector] = rule["from"][0]["podSelector"]["matchExpressions"]
    apps = [workload["spec"]["template"]["metadata"]["labels"]["app"] for workload in WORKLOADS]
    assert sorted([*selector["values"], "redis"]) == sorted(apps)


def test_each_user_of_redis_may_do_what_it_needs() -> None:
    users: dict[str, set[str]] = {}
    for line in (HERE / "users.acl").read_text().splitlines():
        _, name, *rules = line.split()
        users[name] = {rule for rule in rules if rule[0] in "~&+-"}
    # A file of users knows no escapes: `?` stands for each of the two bytes.
    of_steps = {"~celery\x06\x16*": "~celery??[0-9]"}
    documented = {
        user: {of_steps.get(rule, rule) for rule in documented_rules("celery", user=user) if rule[0] in "~&+"}
        for user in ("shop", "exporter")
    }
    assert users["default"] == {"-@all", "+ping"}
    assert users["shop"] == documented["shop"]
    assert users["exporter"] == documented["exporter"]
    channels = {"+publish", "+psubscribe", "+punsubscribe", "+unsubscribe"}
    commands = {rule for rule in documented["shop"] if rule[0] == "+"} - channels
    assert users["page"] == {rule for rule in users["exporter"] if rule[0] == "~"} | commands


@each_workload
def test_its_pods_are_its_own(workload: dict[str, Any]) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    alike = [other for other in WORKLOADS if other["spec"]["template"]["metadata"]["labels"] == labels]
    assert alike == [workload]


@each_workload
def test_its_probes_ask_where_it_listens(workload: dict[str, Any]) -> None:
    container = _container(workload)
    ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", ())}
    for probe in ("readinessProbe", "livenessProbe"):
        for way in ("httpGet", "tcpSocket"):
            if way in container.get(probe, {}):
                assert container[probe][way]["port"] in ports
    told = set(re.findall(r"port (\d+)", " ".join(container["command"])))
    if told:
        assert told == set(ports.values())
        # From another pod, nobody reaches a program that listens on its own loopback.
        assert "address 0.0.0.0" in " ".join(container["command"])
    annotations = workload["spec"]["template"]["metadata"].get("annotations", {})
    if "prometheus.io/port" in annotations:
        assert annotations["prometheus.io/port"] == ports["metrics"]


@pytest.mark.parametrize("service", SERVICES, ids=[service["metadata"]["name"] for service in SERVICES])
def test_a_service_leads_to_ports_of_pods(service: dict[str, Any]) -> None:
    [workload] = (
        workload
        for workload in WORKLOADS
        if workload["spec"]["template"]["metadata"]["labels"] == service["spec"]["selector"]
    )
    names = {port["name"] for port in _container(workload)["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_the_secret_has_what_is_asked_for() -> None:
    asked = {
        (variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"])
        for workload in WORKLOADS
        for variable in _container(workload).get("env", ())
    }
    text = KUSTOMIZATION.read_text().replace("\\\n#", "")
    [users, (secret, keys)] = re.findall(r"create secret generic ([\w-]+) (.*)", text)
    assert users == ("redis-users", "--from-file=users.acl")
    assert asked == {(secret, key) for key in re.findall(r"--from-literal=([\w-]+)=", keys)}
    [url] = re.findall(r"=broker-url=(\S+)", keys)
    [redis] = (service for service in SERVICES if service["metadata"]["name"] == "redis")
    assert url == f"redisdelay://shop:...@redis:{redis['spec']['ports'][0]['port']}/0"


@each_workload
def test_it_may_do_no_more_than_it_must(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert _container(workload)["securityContext"]["allowPrivilegeEscalation"] is False
    assert _container(workload)["resources"]["limits"]["memory"]


def test_beat_runs_once() -> None:
    [beat] = (workload for workload in WORKLOADS if "beat" in _container(workload)["command"])
    assert (beat["spec"]["replicas"], beat["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_a_worker_has_time_to_stop() -> None:
    [worker] = (workload for workload in WORKLOADS if "worker" in _container(workload)["command"])
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 30


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    [container] = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _celery_commands(workload: dict[str, Any]) -> Iterator[list[str]]:
    container = _container(workload)
    commands = [container["command"]]
    commands += [
        container[probe]["exec"]["command"]
        for probe in ("readinessProbe", "livenessProbe")
        if "exec" in container.get(probe, {})
    ]
    for command in commands:
        words = command[2].split() if command[:2] == ["sh", "-c"] else command
        if words[0] == "celery":
            yield words
