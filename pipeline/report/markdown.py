"""The table as GitHub Markdown."""

import re

from pipeline.report.entry import Entry, Table


def render_markdown(table: Table) -> str:
    """Heading, table, caption and notes, each number on one line."""
    headings = [escape(heading) for heading in table.headings]
    lines = [_line(headings), _line([":--", *["--:"] * (len(headings) - 1)])]
    for row in table.rows:
        cells = [_cell(entry) for entry in row.entries]
        lines.append(_line([escape(row.name), *cells, *([row.entries[-1].change] if table.has_difference else [])]))
    notes = [f"<sup>{letter}</sup> {escape(text)}  " for letter, text in table.notes]
    parts = [f"# {escape(table.title)}", "\n".join(lines), escape(table.caption), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", " ".join(text.split()))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(entry: Entry) -> str:
    if entry.published is not None:
        return escape(entry.published)
    text = f"**{entry.value}**" if entry.best else entry.value
    text += f" ± {entry.spread}" if entry.spread else ""
    text += f" ({entry.change})" if entry.change and not entry.is_average else ""
    return text + (f" <sup>{entry.mark}</sup>" if entry.mark else "")
