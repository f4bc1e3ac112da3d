"""Shares of a preparation, made by the tasks of a job array and joined by the last of them.

CACHE/prepared/KEY.shares/I-of-N/pieces.arrow   the pieces of every N-th chunk, from the I-th on
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.errors import StageError
from pipeline.files import atomic_folder, read_json, write_json
from pipeline.prepare.piece import Piece, PieceWriter, read_pieces
from pipeline.share import Share

PIECES, COUNT = "pieces.arrow", "count.json"


class Shares:
    """The shares of the prepared rows that will lie at `path`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(f"{path.name}.shares")

    def _of(self, share: Share) -> Path:
        return self.folder / f"{share.number}-of-{share.count}"

    def has(self, share: Share) -> bool:
        return (self._of(share) / COUNT).is_file()

    def missing(self, count: int) -> list[Share]:
        """Those of `count` shares that aren't there yet."""
        shares = [Share(number, count) for number in range(1, count + 1)]
        return [share for share in shares if not self.has(share)]

    def complete(self) -> int | None:
        """A number of shares of which all are there."""
        counts = {int(folder.name.partition("-of-")[2]) for folder in self.folder.glob("[0-9]*-of-[0-9]*")}
        return next((count for count in sorted(counts) if not self.missing(count)), None)

    def write(self, share: Share, pieces: Iterable[Piece]) -> None:
        """Write a share, whole or not at all.

        Raises:
            StageError: the folder can't be written.
        """
        with atomic_folder(self._of(share)) as temporary:
            with PieceWriter(temporary / PIECES) as file:
                for piece in pieces:
                    file.put(piece)
            write_json(temporary / COUNT, file.count)

    def pieces(self, count: int) -> Iterator[Piece]:
        """All pieces of `count` shares, in the order of the sources.

        Raises:
            StageError: a share is damaged.
        """
        files = [self._of(share) for share in (Share(number, count) for number in range(1, count + 1))]
        pieces = sum(int(read_json(file / COUNT) or 0) for file in files)
        streams = [read_pieces(file / PIECES) for file in files]
        for number in range(pieces):
            piece = next(streams[number % count], None)
            if piece is None:
                raise StageError(f"{files[number % count]}: holds fewer rows than it should: remove {self.folder}")
            yield piece

    def remove(self) -> None:
        """They are joined."""
        shutil.rmtree(self.folder, ignore_errors=True)
