"""How the text of a reply ends, as a digest by which a later request is recognised."""

from __future__ import annotations

import re
from hashlib import blake2b

ENDING_LENGTH = 64  # characters of a text that make its ending
_THOUGHT = re.compile(r"</think(?:ing)?>")


def ending(text: str) -> str:
    """The digest of the end of a text, in hex; "" if the text is only white space."""
    end = "".join(_THOUGHT.split(text)[-1].split())[-ENDING_LENGTH:]
    return blake2b(end.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if end else ""
