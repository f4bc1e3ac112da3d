"""The table as GitHub Markdown."""

import re

from pipeline.report.entry import Entry, Table


def render_markdown(table: Table) -> str:
    """Heading, table, caption and notes, each number on one line."""
    headings, lead = [escape(heading) for heading in table.headings], len(table.lead_headings)
    lines = [_line(headings), _line([*[":--"] * lead, *["--:"] * (len(headings) - lead)])]
    for row in table.rows:
        texts = [escape(text) for text in table.lead(row)]
        lines.append(_line([*texts, *map(_cell, row.entries), *([row.change] if table.has_difference else [])]))
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
    text = {1: f"**{entry.value}**", 2: f"<ins>{entry.value}</ins>"}.get(entry.rank, entry.value)
    text += f" {escape(entry.spread)}" if entry.spread else ""
    text += f" ({f'{entry.bracketed} {entry.noise}'.strip()})" if entry.bracketed else ""
    return text + (f" <sup>{entry.mark}</sup>" if entry.mark else "")
