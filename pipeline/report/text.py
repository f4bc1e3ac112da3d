"""Texts from run folders, so that they act on nothing that shows them."""


def printable(text: str) -> str:
    """Without what moves a terminal's cursor, clears it or turns its text around, and without halves of characters,
    which no file can hold; lines stay lines, other white space becomes spaces."""
    return "".join(map(_printable, text))


def shortened(text: str, most: int) -> str:
    """On one line, cut to that many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _printable(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
