"""The part of some work that one of several processes does, as one task of a job array."""

from dataclasses import dataclass

from pipeline.errors import UserError


@dataclass(frozen=True)
class Share:
    """Every `count`-th item of work, from the `number`-th on (1 to count): what one of several processes does."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UserError(f"share {self.number}/{self.count}: must be 1/{self.count} to {self.count}/{self.count}")

    @classmethod
    def parse(cls, text: str) -> "Share":
        """From `2/4`, the second of four shares.

        Raises:
            UserError: it is not of that form.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(count)):
            raise UserError(f"share {text!r}: must be of the form 2/4, the second of four")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, index: int) -> bool:
        return index % self.count == self.number - 1
