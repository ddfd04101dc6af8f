"""The app of a worker whose server refuses keys that a script does not declare."""

from __future__ import annotations

from tests.end_to_end.app import app as app
from tests.undeclared import refuse_undeclared_keys

refuse_undeclared_keys()
