"""Discovery: the window of a model as the server behind the upstream's address has loaded it.

reading      what a server said: its kind, and the windows of its models
listing      the model list, which shows the kind of most servers and the windows of some
servers      the pages on which other servers state what they have loaded
discovered   asks in the background, and keeps the answers

A model's ceiling is the window that it was trained for; servers load most models with less. Only windows that a server
has loaded, or that a host says it serves, are used; otherwise the window stays unknown.
"""

from __future__ import annotations

from proxy.discovery.discovered import Discovered

__all__ = ["Discovered"]
