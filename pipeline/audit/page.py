"""The audit as one HTML page that needs no server and no network."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.audit.view import View
from pipeline.report.page import WEB as REPORT

WEB = Path(__file__).parent / "web"


def render_page(view: View) -> str:
    """The whole page, in the style of the report's."""
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = Markup((REPORT / "page.css").read_text(encoding="utf-8") + (WEB / "audit.css").read_text(encoding="utf-8"))
    return environment.get_template("audit.html.jinja").render(view=view, style=style)
