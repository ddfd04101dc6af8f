"""Whether the real ``celery`` takes a command line, without running it.

As a program, it reads a list of command lines and writes what is wrong with each, as JSON: a process imports
an app only once, and two examples call theirs ``shop``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tests.examples.site import environment


def refused(commands: Sequence[Sequence[str]], directory: Path) -> list[str]:
    """What ``celery`` says against the *commands* that it does not take, with the app of *directory*."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(commands),
        cwd=directory,
        env=environment(directory),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[str | None] = json.loads(done.stdout)
    assert len(answers) == len(commands)
    return [f"{' '.join(words)}: {why}" for words, why in zip(commands, answers, strict=True) if why]


def _objection(words: Sequence[str]) -> str | None:
    # Not at the top: tests import this module, too, and celery's program is for one process.
    from celery import Celery
    from celery.app.utils import find_app
    from celery.bin.base import CLIContext
    from celery.bin.celery import celery

    program, *arguments = words
    if program != "celery":
        return f"{program} is not celery"
    command: click.Command = celery
    context: click.Context | None = None
    name: str | None = program
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not isinstance(command, click.Group):
                return None
            # click has no public name for what follows the options of a group.
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            name, found, arguments = command.resolve_command(context, rest)
            if found is None:
                return f"no command {name}"
            command = found
            if context.obj is None:
                # As celery does before it runs the command: defaults of options are settings of the app.
                name_of_app = context.params["app"]
                app = find_app(name_of_app) if name_of_app else Celery()
                context.obj = CLIContext(app, False, None)
    except click.ClickException as exc:
        return exc.format_message()
    except (ImportError, AttributeError) as exc:
        return f"no app: {exc}"


if __name__ == "__main__":
    answers = [_objection(words) for words in json.load(sys.stdin)]
    print(json.dumps(answers))
