"""``python -m tools.benchmarks``"""

from __future__ import annotations

import sys

try:
    from tools.benchmarks.command import main
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    sys.exit(
        f"benchmarks: {missing} is not installed. "
        "Say `tox -e bench`, or pip install -e '.[celery]' --group bench"
    )

if __name__ == "__main__":
    sys.exit(main())
