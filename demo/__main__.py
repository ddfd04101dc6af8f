"""Runs the demo: exit status 0 if every task ran, and none before its time."""

from __future__ import annotations

import sys

from demo.interrupt import Interrupt, Interrupted


def main() -> int:
    interrupt = Interrupt()
    # Not before: importing Celery takes a while, and Ctrl-C may come meanwhile.
    from demo.scenario import TASKS, play
    from demo.screen import Screen

    screen = Screen(TASKS)
    try:
        with screen:
            report = play(screen, interrupt)
    except Interrupted as interrupted:
        screen.say("interrupted: everything that was started is stopped and removed")
        return interrupted.exit_status
    except (RuntimeError, TimeoutError) as error:
        # No server to be found, or a process that did not start; it says which, with the log's end.
        print(error, file=sys.stderr)
        return 1
    screen.conclude(report)
    return 0 if report.kept_its_word else 1


if __name__ == "__main__":
    sys.exit(main())
