"""Builds the sdist and the wheel, and looks at them as PyPI, and who installs them, will. ``tox -e package``
runs it.

It ends with status 1, and says why, if something is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from tempfile import TemporaryDirectory

from trove_classifiers import classifiers as known_classifiers

from tools.release.readme import broken_links

ROOT = Path(__file__).parents[2]
PACKAGE = "kombu_redisdelay"

#: What setuptools adds to the sdist.
GENERATED = ("PKG-INFO", "setup.cfg", "kombu_redisdelay.egg-info/")

#: What lies in a directory where somebody works, and belongs to no build.
NO_SOURCES = (".git", ".tox", ".venv", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis")

#: What somebody who has installed the wheel, and nothing of ours beside it, does first.
FIRST_STEPS = """
from importlib.resources import files
from celery import Celery
import kombu_redisdelay

assert ".venv-of-wheel" in kombu_redisdelay.__file__, kombu_redisdelay.__file__
app = Celery(broker="redisdelay://localhost:6379/0")
assert type(app.connection_for_write().transport) is kombu_redisdelay.Transport
for file in ("lua/take.lua", "monitoring/alerts.yml", "monitoring/dashboard.json", "py.typed"):
    assert files("kombu_redisdelay").joinpath(file).is_file(), file
"""


def main() -> None:
    parser = ArgumentParser(prog="tox -e package --", description=__doc__)
    parser.add_argument("--into", type=Path, help="Put the sdist and the wheel here when they are good.")
    parser.add_argument("--tag", help="The tag of the release, which must be v and the version.")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="redisdelay-") as name:
        directory = Path(name)
        sdist, wheel = build(directory / "dist")
        run("twine", "check", "--strict", sdist, wheel)
        run("check_wheel_contents", wheel)
        wrong = [*sdist_problems(sdist), *wheel_problems(wheel)]
        if options.tag and not wheel.name.startswith(f"{PACKAGE}-{options.tag.removeprefix('v')}-"):
            wrong.append(f"The tag is {options.tag}, and the wheel {wheel.name}")
        if wrong:
            sys.exit("\n".join(wrong))
        install(wheel, directory)
        if options.into:
            options.into.mkdir(exist_ok=True)
            for file in (sdist, wheel):
                shutil.copy(file, options.into)
        print(f"{sdist.name} and {wheel.name} may be released")


def build(into: Path) -> tuple[Path, Path]:
    """The wheel is built from the sdist, as by whoever has the sdist alone."""
    # setuptools packs what an earlier build here has packed, even if it should not any more.
    clean = into.with_name("sources")
    shutil.copytree(ROOT, clean, ignore=shutil.ignore_patterns(*NO_SOURCES))
    run("build", "--outdir", into, clean)
    [sdist], [wheel] = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def sdist_problems(sdist: Path) -> Iterable[str]:
    """It has the files that git has, and no others."""
    with tarfile.open(sdist) as archive:
        packed = {
            name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()
        }
    packed = {name for name in packed if not name.startswith(GENERATED)}
    tracked = tracked_files()
    if tracked is None:
        print("No clone, or no git: the files of the sdist were not compared with what git has")
        return
    for name in sorted(tracked - packed - {"setup.cfg"}):
        yield f"{name} is missing in the sdist: see MANIFEST.in"
    for name in sorted(packed - tracked):
        yield f"{name} is in the sdist, and not in git: see MANIFEST.in"


def wheel_problems(wheel: Path) -> Iterable[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(metadata))
    for path in sorted((ROOT / PACKAGE).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix != ".pyc" and name not in names:
            yield f"{name} is missing in the wheel: see setup.cfg"
    for name in sorted(names):
        if not name.startswith((f"{PACKAGE}/", f"{PACKAGE}-")):
            yield f"{name} is in the wheel"
    yield from metadata_problems(about)


def metadata_problems(about: Message) -> Iterable[str]:
    for classifier in about.get_all("Classifier", []):
        if classifier not in known_classifiers:
            yield f"PyPI does not know the classifier {classifier}"
    urls = dict(line.split(", ", 1) for line in about.get_all("Project-URL", []))
    for line in broken_links(str(about.get_payload()), urls, ROOT):
        yield f"README.md: {line}"


def tracked_files() -> set[str] | None:
    """What git has here; ``None`` if this is no clone, or git is not installed."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}


def install(wheel: Path, directory: Path) -> None:
    """In an environment with nothing else, and from a directory where nothing of ours is in the way."""
    environment = directory / ".venv-of-wheel"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    call([python, "-m", "pip", "install", "-q", f"{wheel}[cli]"], directory)
    call([python, "-m", "pip", "check"], directory)
    call([python, "-c", FIRST_STEPS], directory)
    call([scripts / "celery", "delayed", "--version"], directory)


def run(module: str, *words: str | Path) -> None:
    call([sys.executable, "-m", module, *words], ROOT)


def call(command: Sequence[str | Path], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _environment() -> dict[str, str]:
    """Without what would have Python find our sources instead of the wheel."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    main()
