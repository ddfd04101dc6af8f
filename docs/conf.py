import re
from dataclasses import is_dataclass
from importlib.metadata import version as installed_version
from typing import Any

from sphinx.application import Sphinx

project = "kombu-redisdelay"
author = "kombu-redisdelay contributors"
project_copyright = f"2026, {author}"
version = release = installed_version("kombu-redisdelay")

extensions = [
    # The Python API and the commands, from what the code says of them.
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    # A button that copies a block of code.
    "sphinx_copybutton",
    # Pictures drawn as text.
    "sphinxcontrib.svgbob",
]

# In the order of the file, where methods stand that belong together.
autodoc_member_order = "bysource"
# As the signature says them: `Selection` is one name for what a queue may be.
autodoc_type_aliases = {"Selection": "str | Iterable[str] | None"}
autodoc_typehints_format = "short"
# An attribute that is described in the docstring of its class has no entry of its own.
napoleon_use_ivar = True

# The button copies commands without their prompt, and without what they print.
copybutton_prompt_text = "$ "
copybutton_copy_empty_lines = False

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
html_js_files = ["tables.js"]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", _signature)
    app.connect("sphinx-click-process-options", _help)
    app.connect("sphinx-click-process-arguments", _help)


def _help(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Options that a help names are code. Each argument of ours is the id of a message."""
    for number, line in enumerate(lines):
        if not line.startswith(".. "):
            line = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"``\1``", line)
            lines[number] = re.sub(r"(?:Optional|Required) argument\(s\)", "The id of a message.", line)


def _signature(
    app: Sphinx, what: str, name: str, one: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """What is only received is shown without the arguments that would make it."""
    return ("" if what == "exception" or is_dataclass(one) else signature), returns
