"""The audit in a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.audit.samples import Sample
from pipeline.audit.view import View

CHARACTERS = 600
"""Of a row, shown here; the page shows all."""
BAR = 40


def show(view: View, console: Console) -> None:
    """Print everything; texts of rows are never read as markup."""
    console.print(Text(view.title, style="bold"))
    console.print(Text(view.summary))
    console.print(_findings(view))
    if view.losses:
        console.print(_losses(view))
    for name, count in view.overlaps.items():
        console.print(Text(f"rows that overlap {name}: {count}"))
    for note in view.notes:
        console.print(Text(f"note: {note}"))
    for what, bins in view.lengths.items():
        console.print(_histogram(f"tokens of the {what}", bins))
    _samples("longest rows", view.longest, console)
    _samples("random rows", view.random, console)


def _findings(view: View) -> Table:
    table = Table("rows with", "count", "percent", "allowed", "")
    for finding in view.findings:
        limit = "any" if finding.limit is None else f"{finding.limit:g}"
        verdict = Text("too many", style="bold red") if finding.is_passed else Text("ok", style="green")
        table.add_row(finding.words, str(finding.count), f"{finding.percent:.2f}", limit, verdict)
    return table


def _losses(view: View) -> Table:
    table = Table("set aside", "reason", "count", "such as")
    for loss in view.losses:
        table.add_row(loss.kind, Text(loss.reason), str(loss.count), Text(loss.examples))
    return table


def _histogram(title: str, bins: list[dict[str, int]]) -> Table:
    table = Table(title, "rows", "", box=None)
    most = max((one["count"] for one in bins), default=1)
    for one in bins:
        table.add_row(f"{one['from']}-{one['to']}", str(one["count"]), "█" * round(BAR * one["count"] / most))
    return table


def _samples(title: str, samples: list[Sample], console: Console) -> None:
    console.print(Text(f"\n{title}: trained tokens in green", style="bold"))
    for sample in samples:
        text = Text(f"{sample.id} ({sample.tokens} tokens, {sample.trained} trained)\n", style="dim")
        for part in sample.parts:
            text.append(_short(part.text), style="green not dim" if part.is_trained else "not dim")
        console.print(text, soft_wrap=True)


def _short(text: str) -> str:
    half = CHARACTERS // 2
    return text if len(text) <= CHARACTERS else f"{text[:half]} [...] {text[-half:]}"
