"""Discovery: the window of a model as the server behind the upstream's address has it loaded.

reading      what a server said: its kind, and the windows of its models
listing      the model list, which tells the kind of most servers and the windows of some
servers      the pages on which the others state what they have loaded
discovered   asks in the background, and keeps what was said

A model's ceiling is what it was trained for; servers load most models with less. Only values that a server has
loaded, or that a host says it serves, are taken; where there is none the window stays unknown.
"""

from __future__ import annotations

from proxy.discovery.discovered import Discovered
from proxy.discovery.reading import Found, Stated, nothing_stated

__all__ = ["Discovered", "Found", "Stated", "nothing_stated"]
