"""Texts from run folders, so that they act on nothing that shows them."""


def printable(text: str) -> str:
    """Without what moves a terminal's cursor, clears it or turns its text around, and without halves of characters,
    which no file can hold; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
