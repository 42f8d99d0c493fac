"""Render the pages from the templates beside this module: Jinja2, which escapes every value."""

from __future__ import annotations

import base64
import hashlib
import json

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from memalpha.report.charts import Z95, swatch

LOADER = PackageLoader("memalpha.report")
ENVIRONMENT = Environment(
    loader=LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: "" if value is None else value,
)


def read_asset(name: str) -> Markup:
    """Return the content of a style or script element: a file of the templates, after a line break."""
    return Markup("\n" + LOADER.get_source(ENVIRONMENT, name)[0])


def source_hash(content: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows an element with this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def embed_json(value: object) -> Markup:
    """Return JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def format_decimals(value: float | None, decimals: int = 3) -> str:
    """Return a number with this many decimals, "-" for None."""
    return "-" if value is None else f"{value:.{decimals}f}"


ENVIRONMENT.filters["decimals"] = format_decimals
ENVIRONMENT.globals |= {"page_style": read_asset("page.css"), "swatch": swatch, "z95": Z95}
