"""``celery delayed doctor``"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import as_called
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import fixed, show, show_json, table
from kombu_redisdelay.cli.table import Cell, Column, Table
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import Finding, Level, examine

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.WRONG: "bold red"}
_LEVEL_COLUMNS = max(map(len, Level))


@click.command("doctor")
@queues_option
@json_option
def command(queues: tuple[str, ...], as_json: bool) -> None:
    """Look for problems, and say what to do about them.

    The exit status is 1 if something is wrong. For warnings alone, it is 0.
    """
    access = connect(Access)
    findings = [replace(each, advice=as_called(each.advice)) for each in examine(access, queues)]
    if as_json:
        show_json(findings)
    else:
        rows = table(fixed(""), Column(wraps=True), gap=1)
        _add_servers(rows, [finding for finding in findings if finding.server])
        for finding in findings:
            if not finding.server:
                _add(rows, finding)
        show(rows)
    if any(finding.level is Level.WRONG for finding in findings):
        raise click.exceptions.Exit(1)


def _add_servers(rows: Table, findings: Iterable[Finding]) -> None:
    """Those that are in order are one row. Those with the same problems are named together."""
    of_each: dict[str, list[Finding]] = {}
    for finding in findings:
        of_each.setdefault(finding.server, []).append(replace(finding, server=""))
    servers_with: dict[tuple[Finding, ...], list[str]] = {}
    for server, found in of_each.items():
        problems = tuple(finding for finding in found if finding.level is not Level.OK)
        servers_with.setdefault(problems, []).append(server)
    in_order = servers_with.pop((), None)
    if in_order:
        _add(rows, Finding(Level.OK, "servers", f"{len(in_order)} in order, {', '.join(in_order)}"))
    for problems, servers in servers_with.items():
        rows.add_row("", f"{'server' if len(servers) == 1 else 'servers'} {', '.join(servers)}:")
        for finding in problems:
            _add(rows, finding, indent="  ")


def _add(rows: Table, finding: Finding, indent: str = "") -> None:
    level = Cell(f"{finding.level.value:{_LEVEL_COLUMNS}}", _STYLES[finding.level])
    rows.add_row(level, f"{indent}{finding.check}: {finding.found}")
    if finding.advice:
        rows.add_row("", Cell(f"{indent}{finding.advice}", "dim"))
