"""In what unit a number is shown, and with how many decimals."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """`scale` turns the measured number into the shown one; `name` is for captions ("" for a bare number)."""

    scale: float
    decimals: int
    name: str = ""

    def written(self, value: float) -> str:
        """The number as text; never "-0.0"."""
        text = f"{self.scale * value:.{self.decimals}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    def signed(self, value: float) -> str:
        """The same with its sign; a difference that is shown as zero has none."""
        text = self.written(value)
        return f"+{text}" if float(text) > 0 else text


PERCENT = Unit(100, 1, "percent")
BARE = Unit(1, 2)
