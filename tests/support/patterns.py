"""What the patterns of the product are given while something runs.

`re` keeps the interpreter's lock, and so every other request waiting, until a call returns. So no call may get more
characters of a request than `STEP`, whatever it finds in them.
"""

import re
import types
from typing import Any

import pytest

from bench.patterns import found

_TAKES_WHOLE = ("sub", "subn", "split")


def watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most characters that a call of each pattern gets from now on."""
    most: dict[str, int] = {}
    for module, key, value in list(found()):
        monkeypatch.setattr(module, key, watched(value, f"{module.__name__}.{key}", most))
    return most


def watched(value: Any, name: str, most: dict[str, int]) -> Any:
    if isinstance(value, re.Pattern):
        return _Watched(value, name, most)
    if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, re.Pattern):
        return getattr(_Watched(value.__self__, name, most), value.__name__)
    if isinstance(value, (tuple, list)):
        inside = [watched(each, name, most) for each in value]
        return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
    return value


class _Watched:
    def __init__(self, pattern: re.Pattern[Any], name: str, most: dict[str, int]) -> None:
        self._pattern, self._name, self._most = pattern, name, most

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._pattern, method)
        if not callable(real):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            texts = [each for each in (*arguments, *named.values()) if isinstance(each, (str, bytes, bytearray))]
            numbers = [each for each in arguments if isinstance(each, int)]
            size, at = len(texts[-1]) if texts else 0, 0
            if method not in _TAKES_WHOLE and numbers:
                at, size = numbers[0], min(size, *numbers[1:]) if numbers[1:] else size
            self._most[self._name] = max(self._most.get(self._name, 0), size - at)
            return real(*arguments, **named)

        return call
