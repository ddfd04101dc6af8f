"""The page and the pictures. matplotlib is imported late: each process of xdist collects this file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from tests.benchmarks.test_output import everything
from tools.benchmarks.goals import GOALS
from tools.benchmarks.report import Report

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    from tools.benchmarks.documents import page
    from tools.benchmarks.pictures import PICTURES, draw

    return SimpleNamespace(page=page, pictures=PICTURES, draw=draw)


def test_the_page_says_how_and_what(bench: SimpleNamespace) -> None:
    text = bench.page(everything())
    assert "   python -m tools.benchmarks\n" in text
    assert "Without RabbitMQ: it is not installed." in text
    assert all(goal.what in text for goal in GOALS)


def test_pictures(bench: SimpleNamespace, tmp_path: Path) -> None:
    paths = bench.draw(everything().results, tmp_path / "new")
    assert [path.name for path in paths] == [f"benchmark-{name}.svg" for name in bench.pictures]
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in paths)


def test_the_same_figures_are_the_same_pictures(bench: SimpleNamespace, tmp_path: Path) -> None:
    first, second = (bench.draw(everything().results, tmp_path / name) for name in ("1", "2"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_no_picture_of_nothing(bench: SimpleNamespace, tmp_path: Path) -> None:
    assert bench.draw(Report({}, {}, []).results, tmp_path) == []
