"""Files of data: on their own, compressed, in a folder or within a zip archive."""

import gzip
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from glob import glob, has_magic
from pathlib import Path
from typing import BinaryIO

import zstandard

from pipeline.errors import UserError
from pipeline.files import expanded
from pipeline.prepare.record import Fault

ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
"""Of the files that can be read, without those of COMPRESSED."""
COMPRESSED = (".gz", ".zst")
DAMAGES = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError, zipfile.BadZipFile,
           NotImplementedError, RuntimeError)  # fmt: skip
"""What reading damaged, encrypted or unknown compressed data raises."""
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
WHOLE_LIMIT = 2**31
"""Bytes that are held in memory at most, where a form of file can't be read row by row."""


@dataclass(frozen=True)
class DataFile:
    """One file of rows."""

    path: Path
    shown: str
    """As messages call it."""
    name: str = ""
    """Its place within the folder or archive, part of the rows' names; empty for a file of its own."""
    member: str | None = None
    """Name within the zip archive at `path`."""

    @property
    def ending(self) -> str:
        """The ending that tells the form, in lower case, without the compression's."""
        name = Path(self.member or self.path.name)
        return (Path(name.stem) if name.suffix.lower() in COMPRESSED else name).suffix.lower()

    @property
    def plain(self) -> bool:
        """Whether the bytes on disk are those of the rows."""
        return self.member is None and self.path.suffix.lower() not in COMPRESSED

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The content, unpacked as it is read. Damage raises one of DAMAGES while reading."""
        if self.member is None:
            with self.path.open("rb") as file:
                yield _unpacked(file, self.path.name)
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                yield _unpacked(file, self.member)  # type: ignore[arg-type]

    def read(self) -> tuple[bytes, Fault | None]:
        """The whole content, or as much as lies before a damage.

        Raises:
            UserError: it is too large to be held in memory.
        """
        content, fault = bytearray(), None
        try:
            with self.open() as file:
                # read() would lose what it had unpacked when it meets the damage
                while len(content) <= WHOLE_LIMIT and (block := file.read1(2**20)):  # type: ignore[attr-defined]
                    content += block
        except DAMAGES as error:
            fault = damage(error)
        if len(content) > WHOLE_LIMIT:
            raise UserError(f"{self.shown}: unpacks to more than {WHOLE_LIMIT // 2**30} GiB: use JSON lines")
        return bytes(content), fault


def damage(error: BaseException) -> Fault:
    """The reason for what lies behind a damage."""
    return Fault("the compressed data is damaged or cut off", str(error)[:120], ends_file=True)


def _unpacked(file: BinaryIO, name: str) -> BinaryIO:
    ending = Path(name).suffix.lower()
    if ending == ".gz":
        return gzip.open(file, "rb")  # type: ignore[return-value]
    return io.BufferedReader(_Zstd(file)) if ending == ".zst" else file


class _Zstd(io.RawIOBase):
    """Zstandard frames as a stream. The library's own reader takes a cut off file for a whole one."""

    STEP = 1024
    """Bytes unpacked at once: a kilobyte can hold tens of megabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._packed, self._ready, self._started = b"", b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready and self._step():
            pass
        taken = self._ready[: len(buffer)]
        self._ready = self._ready[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def _step(self) -> bool:
        packed = self._packed or self._file.read(self.STEP)
        if not packed:
            if self._started and not self._frame.eof:
                raise EOFError("the file ends within a frame")
            return False
        if self._frame.eof:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._started = True
        self._ready = self._frame.decompress(packed)
        self._packed = self._frame.unused_data
        return True


Found = tuple[list[DataFile], list[DataFile]]
"""Files that can be read, and others beside them, whose ending is none of `ENDINGS`."""


def find_files(path: str, pattern: str | None) -> Found:
    """The files that a path means: itself, those of a glob, of a zip archive, or of a folder (with a pattern).

    Returns:
        Files in the order of their names; none where the path is a folder without a pattern, or may be a hub id.
        Of several, those that can't be read stand apart.

    Raises:
        UserError: there is no such file, none fits, the archive is broken, or holds further archives.
    """
    place = expanded(path)
    if place.is_file() and place.suffix.lower() == ".zip":
        return _members(place, path, pattern)
    if place.is_file():
        return [DataFile(place, path)], []
    if place.is_dir() and pattern:
        return _globbed(place, path, pattern)
    if has_magic(path) and not place.exists():
        first = next(index for index, part in enumerate(place.parts) if has_magic(part))
        return _globbed(Path(*place.parts[:first]), path, str(Path(*place.parts[first:])))
    _refuse_missing(place, path)
    return [], []


def _refuse_missing(place: Path, path: str) -> None:
    """What can only be a file is not looked for on the hub."""
    if place.is_dir():
        return
    if place.suffix.lower() in (*ENDINGS, *COMPRESSED, ".zip") or path.startswith((".", "/", "~")):
        raise UserError(f"{path}: no such file")
    if not HUB_ID.fullmatch(path):
        raise UserError(f"{path}: no such file, and not the form of a hub id (owner/name)")


def _globbed(folder: Path, shown: str, pattern: str) -> Found:
    names = sorted(glob(pattern, root_dir=folder, recursive=True), key=lambda name: (name.count("/"), name))
    once = {(folder / name).resolve(): name for name in reversed(names) if (folder / name).is_file()}  # links may loop
    files = [DataFile(folder / name, f"{folder / name}", name) for name in sorted(once.values())]
    return _sorted_out(files, shown, pattern)


def _members(path: Path, shown: str, pattern: str | None) -> Found:
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(info.filename for info in archive.infolist() if not info.is_dir())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise UserError(f"{shown}: is not a whole zip archive ({error})") from None
    if len(set(names)) < len(names):
        raise UserError(f"{shown}: holds two files of one name")
    wanted = [name for name in names if fnmatch(name, pattern or "*") and not name.startswith("__MACOSX/")]
    nested = [name for name in wanted if name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz", ".7z"))]
    if nested:
        raise UserError(f"{shown}: holds a further archive, {nested[0]}: unpack it, or name others by `files:`")
    files = [DataFile(path, f"{shown}/{name}", name, name) for name in wanted]
    return _sorted_out(files, shown, pattern)


def _sorted_out(files: list[DataFile], shown: str, pattern: str | None) -> Found:
    found = [file for file in files if file.ending in ENDINGS]
    if not found:
        seen = f", only {', '.join(file.name for file in files[:5])}" if files else ""
        of = f" of {pattern!r}" if pattern else ""
        raise UserError(f"{shown}: holds no file{of} that can be read ({', '.join(ENDINGS)}){seen}")
    return found, [file for file in files if file not in found]


def content_hash(files: list[DataFile]) -> str:
    """SHA-256 of a file's bytes, or of names and hashes of several."""
    if len(files) == 1 and not files[0].name:
        return _hash(files[0].path)
    paths = {file.path for file in files}
    hashes = {path: _hash(path) for path in paths}
    lines = "".join(f"{hashes[file.path]} {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
