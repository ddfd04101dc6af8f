"""Runs the demo: exit status 0 if every task ran, and none before its time."""

from __future__ import annotations

import argparse
import sys

from tools import demo
from tools.demo.interrupt import Interrupt, Interrupted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=demo.__doc__)
    parser.add_argument(
        "--web", action="store_true", help="show the queues in a browser at the end, until Ctrl-C"
    )
    options = parser.parse_args()
    interrupt = Interrupt()
    # Not before: importing Celery takes a while, and Ctrl-C may come meanwhile.
    from tools.demo.scenario import TASKS, staged
    from tools.demo.screen import Screen

    screen = Screen(TASKS)
    report = None
    try:
        with staged(screen, interrupt) as scenario:
            with screen:
                report = scenario.play()
            screen.conclude(report)
            if options.web:
                scenario.serve_page()
    except Interrupted as interrupted:
        screen.say("interrupted: everything that was started is stopped and removed")
        if report is None:
            return interrupted.exit_status
    except (RuntimeError, TimeoutError) as error:
        # No server to be found, or a process that did not start; it says which, with the log's end.
        print(error, file=sys.stderr)
        return 1
    return 0 if report.kept_its_word else 1


if __name__ == "__main__":
    sys.exit(main())
