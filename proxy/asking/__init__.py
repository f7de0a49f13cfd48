"""The proxy's own calls to models: summaries, votes and embeddings, each from the model that the settings name.

lanes     when a call that no client waits for may be made, per server
dispatch  the dispatcher that every call passes: lane, whose credential it carries and how long, timeout
calls     `Asking`: one question to one server, ballots of several, and the vectors of texts
"""

from proxy.asking.calls import Asking, Resolver, Roles
from proxy.asking.dispatch import Caller, FinishedCall

__all__ = ["Asking", "Caller", "FinishedCall", "Resolver", "Roles"]
