"""Request headers that begin with `X-Condenser-` and name no control: they are ignored, and the log says so once.

A request with one is served, for a newer client may talk to an older proxy. A misspelt name must not go unnoticed
either, so each name is logged when it first comes. Names come from clients: no more than a few are kept, and none is
logged beyond those.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Iterable
from difflib import get_close_matches

_log = logging.getLogger(__name__)

_PLAIN = frozenset(string.ascii_letters + string.digits + "-_")
_LONGEST = 64
"""Characters of a name that are logged."""


class UnknownHeaders:
    """The unknown names that were logged, at most `most` of them."""

    def __init__(self, known: Iterable[str], most: int = 32) -> None:
        self._known = [f"X-Condenser-{key.title()}" for key in known]
        self._most = most
        self._logged: set[str] = set()

    def warn(self, name: str) -> None:
        """Logs a name that was not logged before; never the header's value."""
        shown = "".join(char if char in _PLAIN else "?" for char in name[:_LONGEST]).title()
        if shown in self._logged or len(self._logged) > self._most:
            return
        self._logged.add(shown)
        if len(self._logged) > self._most:
            _log.warning("more than %d unknown X-Condenser- request headers: no further one is logged", self._most)
            return
        near = get_close_matches(shown, self._known, 1, 0.75)
        hint = f"; did the client mean {near[0]}?" if near else ""
        _log.warning("the request header %s is unknown and ignored%s", shown, hint)
