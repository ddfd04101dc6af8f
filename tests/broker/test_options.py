"""Transport options of a wrong type or out of range."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from dataclasses import fields
from pathlib import Path

import pytest

from kombu_redisdelay.broker.options import FAILED_KEPT, KeepFailed, Options


def test_defaults() -> None:
    options = Options.of({})
    assert (options.visibility_timeout, options.delivery_limit, options.max_batch) == (60, 9, 64)
    assert options.retry_wait == 1
    assert options.lease_policy.lease_ms == 60_000


def test_what_is_kept_of_failed_tasks() -> None:
    assert Options().kept_failed == KeepFailed(10_000, 180 * 24 * 3600 * 1000, 64 * 1024 * 1024)
    assert Options(keep_failed={"age": 0.5}).kept_failed == KeepFailed(10_000, 500, 64 * 1024 * 1024)
    assert Options(keep_failed=None).kept_failed is Options(keep_failed=0).kept_failed is None


def test_kombus_own_options_are_not_ours() -> None:
    assert Options.of({"priority_steps": "anything", "sep": None}) == Options()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("visibility_timeout", 0.5),
        ("visibility_timeout", 3600),
        ("visibility_timeout", 10**9),
        ("delivery_limit", 1),
        ("delivery_limit", None),
        *(("retry_wait", value) for value in (0, 0.0, 0.5, 300)),
        ("dead_letter", True),
        ("revoke_scheduled", False),
        ("unknown_task_wait", 0.5),
        ("unknown_task_wait", None),
        ("dead_letter_limit", 1),
        *(("keep_failed", value) for value in (None, 0, {}, {"count": 1}, {"age": 0.5, "bytes": 1})),
        ("max_batch", 1),
        ("max_batch", 500),
    ],
)
def test_accepted(name: str, value: object) -> None:
    assert getattr(Options.of({name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("visibility_timeout", value)
            for value in (0, -1, 10**9 + 1, math.nan, math.inf, True, "60", None, [60])
        ),
        *(("delivery_limit", value) for value in (0, -1, 1.0, True, False, "20", [20], math.inf)),
        *(("unknown_task_wait", value) for value in (0, -1, 10**9 + 1, math.nan, True, "60", [60])),
        *(("revoke_scheduled", value) for value in (1, 0, "no", None)),
        *(("retry_wait", value) for value in (-1, math.nan, math.inf, 10**9 + 1, True, "1", None)),
        *(("dead_letter", value) for value in (1, 0, "yes", None)),
        *(("dead_letter_limit", value) for value in (0, -1, 10.0, True, "10", None)),
        *(("keep_failed", value) for value in (1, True, "all", {"count": 0}, {"size": 1}, {"age": 0})),
        *(("max_batch", value) for value in (0, -1, 501, 64.0, True, "64", None, [64])),
    ],
)
def test_refused_with_name_and_value(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{name}'") as caught:
        Options.of({name: value})
    shown = next(iter(value.values())) if name.startswith("keep_") and isinstance(value, dict) else value
    assert repr(shown) in str(caught.value) or "is unknown; known are count, age" in str(caught.value)


def test_the_wrong_member_is_named() -> None:
    with pytest.raises(ValueError, match=r"None, and 'days' is unknown; known are count, age, bytes$"):
        Options.of({"keep_failed": {"count": 5, "days": 3}})
    with pytest.raises(ValueError, match=r"None, and not have 0 as 'age'$"):
        Options.of({"keep_finished": {"count": 5, "age": 0}})


def test_a_lease_is_never_of_no_length() -> None:
    assert Options.of({"visibility_timeout": 0.0001}).lease_policy.lease_ms == 1
    assert Options.of({"visibility_timeout": 0.25}).lease_policy.lease_ms == 250


def test_the_page_has_each_of_them_and_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "options.rst").read_text()
    ours, *_ = page.partition("Options of kombu's transport")
    rows = re.findall(r"^   \* - ``(\w+)``\n     - (?:``)?(.+?)(?:``)?$", ours, re.MULTILINE)
    expected = {each.name: getattr(Options(), each.name) for each in fields(Options)}
    assert {name: literal_eval(default) for name, default in rows} == expected | {"keep_failed": FAILED_KEPT}
