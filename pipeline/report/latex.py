"""The table as LaTeX with booktabs: a fragment to \\input into a paper, and a document that compiles as it is."""

from pipeline.report.entry import Entry, Table

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
    "`": r"\textasciigrave{}",
    "[": "{[}",  # a row that starts with [ or * would be read as an argument of the line break before it
    "*": "{*}",
    "-": "-{}",  # otherwise -- becomes a dash
}

DOCUMENT = r"""\documentclass{article}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
%s\end{document}
"""


def render_document(table: Table) -> str:
    """A whole document with the table."""
    return DOCUMENT % render_latex(table)


def render_latex(table: Table) -> str:
    """A table environment, scaled down where it is wider than the line. It needs \\usepackage{booktabs,graphicx}."""
    headings = [escape(heading) for heading in table.headings]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{escape(table.title)}. {escape(table.caption)}}}",
        r"\smallskip",
        rf"\sbox0{{\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        r"\toprule",
        _line(headings),
        r"\midrule",
        *(_line(_cells(table, index)) for index in range(len(table.rows))),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        r"\par\smallskip\raggedright\footnotesize",
        *(rf"{_raised(letter)} {escape(text)}\par" for letter, text in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.split()))


def _line(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cells(table: Table, index: int) -> list[str]:
    row = table.rows[index]
    difference = [_signed(row.entries[-1].change)] if table.has_difference else []
    return [escape(row.name), *map(_cell, row.entries), *difference]


def _cell(entry: Entry) -> str:
    if entry.published is not None:
        return escape(entry.published)
    text = rf"\textbf{{{entry.value}}}" if entry.best else entry.value
    text += rf" $\pm$ {entry.spread}" if entry.spread else ""
    text += f" ({_signed(entry.change)})" if entry.change and not entry.is_average else ""
    return text + (_raised(entry.mark) if entry.mark else "")


def _signed(change: str) -> str:
    return f"${change}$" if change else ""


def _raised(text: str) -> str:
    return rf"\textsuperscript{{{text}}}"
