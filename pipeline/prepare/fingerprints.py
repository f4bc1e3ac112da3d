"""Fingerprints of rows, by which duplicates are told: a digest, and MinHash signatures of the words."""

import hashlib
from collections.abc import Iterable
from functools import partial

import numpy
import pyarrow as pa
import xxhash
from datasketch import MinHash

from pipeline.prepare.filter_config import DuplicatesConfig
from pipeline.prepare.tokens import Tokens
from pipeline.prepare.words import words_of

DIGEST = 16
"""Bytes of a digest."""


def digest_of(tokens: Tokens) -> bytes:
    """16 bytes that tell one row from another: its tokens, and where its answers start and end."""
    numbers = numpy.array([tokens.prompt_length, *tokens.input_ids, *tokens.turns], dtype="<i4")
    return hashlib.blake2b(numbers.tobytes(), digest_size=DIGEST).digest()


def shingles(text: str, n: int) -> list[bytes]:
    """The runs of `n` words of a text; all its words where they are fewer."""
    words = words_of(text)
    return [" ".join(words[start : start + n]).encode() for start in range(max(1, len(words) - n + 1))]


def signatures(texts: Iterable[str], config: DuplicatesConfig) -> list[bytes]:
    """MinHash signatures (Broder 1997), 4 bytes a permutation."""
    parts = (shingles(text, config.ngram) for text in texts)
    hashes = MinHash.generator(
        parts, num_perm=config.permutations, seed=1, scheme="affine32", hashfunc=partial(xxhash.xxh32_intdigest, seed=0)
    )
    return [found.hashvalues.astype("<u4").tobytes() for found in hashes]


def columns_for(config: DuplicatesConfig) -> list[pa.Field]:
    """The columns of fingerprints that pieces carry until duplicates are found."""
    exact = [pa.field("exact", pa.binary(DIGEST))] if config.exact else []
    near = [pa.field("near", pa.binary(4 * config.permutations))] if config.near else []
    return [pa.field("place", pa.int32()), *exact, *near] if exact or near else []


def matrix_of(column: pa.Array, dtype: str) -> numpy.ndarray:
    """A column of fixed-size bytes as [rows, numbers]."""
    width = column.type.byte_width // numpy.dtype(dtype).itemsize
    values = numpy.frombuffer(column.buffers()[1], dtype=dtype)
    return values.reshape(-1, width)[column.offset : column.offset + len(column)]
