"""The table as LaTeX with booktabs: a fragment to \\input into a paper, and a document that compiles as it is."""

from collections.abc import Sequence
from unicodedata import normalize

from pipeline.report.entry import NOISE, UNTESTED, Entry, Row, Table
from pipeline.report.text import printable, shortened

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "…": r"\ldots{}",
    "≈": r"$\approx$",
    "≥": r"$\geq$",
    "•": r"$\bullet$",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # a row that starts with [ or * would be read as an argument of the line break before it
    "*": "{*}",
    "-": "-{}",  # otherwise -- becomes a dash
}

GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
SPECIAL |= dict(zip("αβγδεζηθικλμνξπρστυφχψωΓΘΛΞΠΣΥΦΨΩ", (rf"$\{name}$" for name in GREEK.split()), strict=True))
SPECIAL |= {
    "≤": r"$\leq$",
    "\N{MINUS SIGN}": "$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "\N{REPLACEMENT CHARACTER}": "?",
}

MARKS = "§°²³µ·†‡€\u2013\u2014\u2018\u2019\u201c\u201d"
UNKNOWN = "ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų"
"""Latin letters that pdflatex has not without a package for further fonts."""

IN_MATHEMATICS = {NOISE: r"\,\approx", UNTESTED: r"\,?"}
PAGE = 45
"""Rows that fit on a page under a long caption: what a float has beyond, LaTeX prints off the paper."""
LINE = 100
"""Letters of a footnote's line."""
LONGEST = 150
"""Characters of a name in the table: TeX knows no dimension larger than 5.75 m."""

DOCUMENT = r"""\documentclass{article}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
%s\end{document}
"""


def render_document(*tables: Table) -> str:
    """A whole document with the tables."""
    return DOCUMENT % "\n".join(map(render_latex, tables))


def render_latex(table: Table) -> str:
    """A table environment, scaled down where it is wider than the line; one for each page of a table that is longer.
    Footnotes that have no room under its last rows follow as text, which may go on over several pages.

    It needs \\usepackage{booktabs,graphicx}.
    """
    *pages, last = _pages(table)
    lines = [line for number, blocks in enumerate(pages) for line in [*_page(table, blocks, number), r"\clearpage"]]
    notes = [rf"{_raised(letter)} {escape(text)}\par" for letter, text in table.notes]
    has_room = sum(map(len, last)) + sum(1 + len(note) // LINE for note in notes) <= PAGE
    below, after = (notes, []) if has_room else ([], [r"\clearpage", r"{\raggedright\footnotesize", *notes, "}"])
    return "\n".join([*lines, *_page(table, last, len(pages), below), *after]) + "\n"


def _pages(table: Table) -> list[list[list[Row]]]:
    """The blocks of each page; a block may go on over several."""
    pages: list[list[list[Row]]] = [[]]
    room = PAGE
    for rows in table.blocks:
        while rows:
            if not room:
                pages.append([])
                room = PAGE
            pages[-1].append(rows[:room])
            rows, room = rows[room:], room - len(pages[-1][-1])
    return pages


def _page(table: Table, blocks: list[list[Row]], number: int, notes: Sequence[str] = ()) -> list[str]:
    headings = list(map(_name, table.headings))
    lead = len(table.lead_headings)
    caption = f"{escape(table.title)} (continued)." if number else f"{escape(table.title)}. {escape(table.caption)}"
    return [
        r"\begin{table}[htbp]",
        *([r"\addtocounter{table}{-1}"] if number else []),
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{caption}}}",
        r"\smallskip",
        rf"\sbox0{{\begin{{tabular}}{{{'l' * lead}{'r' * (len(headings) - lead)}}}",
        r"\toprule",
        _line(headings),
        *(line for block in blocks for line in [r"\midrule", *_block(table, block)]),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        r"\par\smallskip\raggedright\footnotesize",
        *notes,
        r"\end{table}",
    ]


def escape(text: str) -> str:
    """Text that LaTeX prints as it is, on one line. Characters that pdflatex has no letters for are named: U+4E2D."""
    return "".join(map(_escaped, normalize("NFC", " ".join(printable(text).split()))))


def _name(text: str) -> str:
    return escape(shortened(text, LONGEST))


def _escaped(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isascii() or character in MARKS or ("À" <= character <= "ž" and character not in UNKNOWN):
        return character
    return rf"\texttt{{U+{ord(character):04X}}}"


def _line(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _block(table: Table, rows: list[Row]) -> list[str]:
    """The lines of one group, which is named in the first of them only."""
    lines = []
    for number, row in enumerate(rows):
        lead = list(map(_name, table.lead(row)))
        if number and table.group_heading:
            lead[0] = ""
        difference = [_signed(row.change)] if table.has_difference else []
        lines.append(_line([*lead, *map(_cell, row.entries), *difference]))
    return lines


def _cell(entry: Entry) -> str:
    if entry.published is not None:
        return escape(entry.published)
    text = escape(entry.value) if entry.value == "-" else entry.value
    text = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(entry.rank, text)
    text += f" {escape(entry.spread)}" if entry.spread else ""
    text += f" ({_signed(f'{entry.bracketed} {entry.noise}'.strip())})" if entry.bracketed else ""
    return text + (_raised(entry.mark) if entry.mark else "")


def _signed(change: str) -> str:
    """Difference and mark of noise in mathematics, so that the minus is one."""
    for mark, symbol in IN_MATHEMATICS.items():
        change = change.replace(mark, symbol)
    return f"${change}$" if change else ""


def _raised(text: str) -> str:
    return rf"\textsuperscript{{{text}}}"
