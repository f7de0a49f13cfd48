"""Request headers that begin with `X-Condenser-` and name no control: they are ignored; the reply and the log say so.

A request with one is served, for a newer client may talk to an older proxy. A misspelt name must not go unnoticed
either, so the reply names it, and so does the log when it first comes. Names come from clients: no more than a few are
kept, and none is logged beyond those.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_log = logging.getLogger(__name__)

_PLAIN = frozenset(string.ascii_letters + string.digits + "-_")
_LONGEST = 64
"""Characters of a name that are shown."""
MIN_LIKENESS = 0.75
"""How like a known name an unknown one must be for that to be meant."""
_MAX_SHOWN = 4


class UnknownHeaders:
    """The unknown names that were logged, at most `most` of them."""

    def __init__(self, known: Iterable[str], most: int = 32) -> None:
        self._known = [f"X-Condenser-{key.title()}" for key in known]
        self._most = most
        self._logged: set[str] = set()

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        """Warnings for the reply about the first of these names, in plain ASCII; each that is new is logged too."""
        return tuple(self._warning(name) for name in names[:_MAX_SHOWN])

    def _warning(self, name: str) -> str:
        """The warning about a name, never with the header's value."""
        shown = "".join(char if char in _PLAIN else "?" for char in name[:_LONGEST]).title()
        near = get_close_matches(shown, self._known, 1, MIN_LIKENESS)
        self._log(shown, f"; did the client mean {near[0]}?" if near else "")
        return f"{shown} is unknown and ignored" + (f", did you mean {near[0]}?" if near else "")

    def _log(self, shown: str, hint: str) -> None:
        if shown in self._logged or len(self._logged) > self._most:
            return
        self._logged.add(shown)
        if len(self._logged) > self._most:
            _log.warning("more than %d unknown X-Condenser- request headers: no further one is logged", self._most)
            return
        _log.warning("the request header %s is unknown and ignored%s", shown, hint)
