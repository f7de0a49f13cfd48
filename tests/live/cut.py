"""A copy of a model in GGUF's form with fewer layers: the same tokenizer, template, slots and cache in far less time.

Its answers make no sense. The form is that of ggml's docs/gguf.md: a head with counts, pairs of a name and a value,
the place of each tensor, and then their data.
"""

import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_TEXT, _ARRAY = 8, 9
_ALIGNED = 32  # bytes, unless `general.alignment` says otherwise, which this model does not


def _number(file: BinaryIO, kind: str) -> Any:
    return struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]


def _text(file: BinaryIO) -> bytes:
    return file.read(_number(file, "Q"))


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _TEXT:
        _text(file)
    elif kind == _ARRAY:
        of, length = _number(file, "I"), _number(file, "Q")
        for _ in range(length):
            _skip(file, of)
    else:
        _number(file, _NUMBERS[kind])


def cut(model: Path, copy: Path, layers: int) -> None:
    """Writes a copy of a model that has only its first layers."""
    with model.open("rb") as file, copy.open("wb") as made:
        head = file.read(8)
        tensors, pairs = _number(file, "Q"), _number(file, "Q")
        began = file.tell()
        for _ in range(pairs):
            name, kind = _text(file), _number(file, "I")
            if name.endswith(b".block_count"):
                count = file.tell() - began
            _skip(file, kind)
        told = bytearray(_between(file, began, file.tell()))
        struct.pack_into("<I", told, count, layers)
        rows: list[tuple[bytes, bytes, int]] = []  # of each tensor its name, its form, and where its data begins
        for _ in range(tensors):
            name, dimensions = _text(file), _number(file, "I")
            form = struct.pack("<I", dimensions) + file.read(8 * dimensions + 4)
            rows.append((name, form, _number(file, "Q")))
        data = -(-file.tell() // _ALIGNED) * _ALIGNED
        offsets = [*sorted(offset for *_, offset in rows), model.stat().st_size - data]
        ends = dict(pairwise(offsets))
        kept = [row for row in rows if not (of := re.match(rb"blk\.(\d+)\.", row[0])) or int(of[1]) < layers]
        made.write(head + struct.pack("<QQ", len(kept), pairs) + told)
        place = 0
        for name, form, offset in kept:
            made.write(struct.pack("<Q", len(name)) + name + form + struct.pack("<Q", place))
            place += ends[offset] - offset
        made.write(bytes(-made.tell() % _ALIGNED))
        for *_, offset in kept:  # each tensor is padded to the alignment already
            made.write(_between(file, data + offset, data + ends[offset]))


def _between(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)
