"""An event of a stream that is too long to be held."""

from collections.abc import Callable, Iterator

SIZE = 24 * 1024 * 1024  # bytes
_CHUNK = 64 * 1024


def giant(
    beginning: bytes = b'data: {"usage": "', end: bytes = b'"}\n\n', line: bytes = b"x" * _CHUNK
) -> Iterator[bytes]:
    """The chunks of an event whose data has no line end, unless `line` has one."""
    yield beginning
    for _ in range(SIZE // len(line)):
        yield line
    yield end


def most_held(feed: Callable[[bytes], bytes], chunks: Iterator[bytes], end: Callable[[], bytes]) -> int:
    """The most bytes that were taken in and not given out again; all must come out as they went in."""
    taken, given, behind = bytearray(), bytearray(), 0
    for chunk in chunks:
        taken += chunk
        given += feed(chunk)
        behind = max(behind, len(taken) - len(given))
    given += end()
    assert given == taken
    return behind
