"""Label files: the answers of a set that keeps them apart from its questions, one a line (PIQA, Social IQA)."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from pipeline.errors import UserError
from pipeline.files import expanded
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.containers import DAMAGES
from pipeline.prepare.record import Fault, Record


def read_labels(config: SourceConfig) -> list[str]:
    """The lines of `config.labels`, a file or a member of the source's zip archive.

    Raises:
        UserError: there is no such file, or it is damaged or not UTF-8.
    """
    name = str(config.labels)
    source = expanded(config.path)
    try:
        if source.suffix.lower() == ".zip" and source.is_file():
            with zipfile.ZipFile(source) as archive:
                content = archive.read(name)
        else:
            content = expanded(name).read_bytes()
        return content.decode("utf-8-sig").rstrip().splitlines()
    except KeyError:
        raise UserError(f"labels: {config.path} holds no file {name!r}") from None
    except UnicodeDecodeError:
        raise UserError(f"labels: {name}: is not UTF-8") from None
    except (*DAMAGES, OSError) as error:
        raise UserError(f"labels: {name}: cannot be read ({error})") from None


def join_labels(records: Iterator[Record], labels: list[str]) -> Iterator[Record]:
    """Each row with its label as the field `answer`; a row without label, or a label without row, is a fault."""
    line = 0
    for record, label in zip_longest(records, labels):
        if record is None:
            yield Record(line + 1, None, Fault("a label without a row", "there are more labels than rows"))
            return
        line = record.line
        if record.values is None:
            yield record
        elif label is None or not label.strip():
            yield replace(record, values=None, fault=Fault("no label on the row's line of the label file"))
        else:
            yield replace(record, values={**record.values, "answer": label.strip()})
