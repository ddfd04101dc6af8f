"""``celery delayed doctor``"""

from __future__ import annotations

import click
from rich.table import Column

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import grid, show, show_json, styled
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import Level, examine

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.WRONG: "bold red"}


@click.command("doctor")
@queues_option
@json_option
def command(queues: tuple[str, ...], as_json: bool) -> None:
    """Look for problems, and say what to do about them.

    The exit status is 1 if something is wrong. For warnings alone, it is 0.
    """
    access = connect(Access)
    findings = examine(access, queues)
    if as_json:
        show_json(findings)
    else:
        rows = grid(Column(width=7), Column())
        for finding in findings:
            level = styled(finding.level.value, _STYLES[finding.level])
            rows.add_row(level, f"{finding.check}: {finding.found}")
            if finding.advice:
                rows.add_row("", styled(finding.advice, "dim"))
        show(rows)
    if any(finding.level is Level.WRONG for finding in findings):
        raise click.exceptions.Exit(1)
