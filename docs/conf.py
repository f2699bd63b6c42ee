"""Sphinx's configuration: `make docs` builds the site with it, every warning an error."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes

from wsgifast import __version__

REPOSITORY = "https://github.com/wsgifast/wsgifast"

project = "wsgifast"
author = "The wsgifast developers"
copyright = f"{author}; MIT licence"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]

# Pages are Markdown. Docstrings are reStructuredText, in which `name` is code here.
myst_heading_anchors = 3
default_role = "code"
highlight_language = "text"  # of blocks that name none
smartquotes = False  # they turn the two hyphens of an option into a dash

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
# `from __future__ import annotations` leaves names that exist for type checkers alone.
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

pygments_style, pygments_dark_style = "friendly", "github-dark"
html_theme = "furo"
html_title = "wsgifast"
html_logo = html_favicon = "assets/logo.svg"
html_static_path = ["_static"]
html_css_files = ["wsgifast.css"]
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "navigation_with_keys": False,
    # The green of the charts.
    "light_css_variables": {
        "color-brand-primary": "#0b7a5c",
        "color-brand-content": "#0b7a5c",
        "color-brand-visited": "#0b7a5c",
    },
    "dark_css_variables": {
        "color-brand-primary": "#3fc59b",
        "color-brand-content": "#3fc59b",
        "color-brand-visited": "#3fc59b",
    },
}
html_copy_source = False
html_show_sourcelink = False

# A prompt is not part of the command.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

# Their pages have the options in a table.
CLASSES_WITH_TABLES = {
    "asgifast.ASGIFast",
    "wsgifast.Compression",
    "wsgifast.StaticFiles",
    "wsgifast.WSGIFast",
    "wsgifast.workers.FastWorker",
}

linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)", REPOSITORY]


def show_pictures(app: object, document: Any) -> None:
    """Make of each <picture>, which GitHub shows, an image for light and one for dark pages.

    So the theme's switch chooses, and Sphinx copies the files, or warns that one is missing.
    """
    for raw in list(document.findall(nodes.raw)):
        if raw.astext().startswith("<picture>"):
            light, dark = nodes.image(), nodes.image()
            for name, value in re.findall(r'(\w+)="(.*?)"', raw.astext()):
                if name in ("src", "srcset"):
                    (light if name == "src" else dark)["uri"] = value
                elif name == "class":
                    light["classes"].append(value)
                    dark["classes"].append(value)
                elif name != "media":
                    light[name] = dark[name] = html.unescape(value)
            light["classes"].append("only-light")
            dark["classes"].append("only-dark")
            raw.replace_self(nodes.container("", light, dark, classes=["picture"]))


def omit_options(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Remove the options from a docstring, if the page has them in a table."""
    if name in CLASSES_WITH_TABLES:
        fields = re.split(r"^(?=:\w)", "\n".join(lines), flags=re.MULTILINE)
        kept = [each for each in fields if not each.startswith((":param ", ":cvar "))]
        lines[:] = "".join(kept).splitlines()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    # Before it collects the images of a page.
    app.connect("doctree-read", show_pictures, priority=100)
    app.connect("autodoc-process-docstring", omit_options)
