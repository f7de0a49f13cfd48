"""The proxy's own calls to models: summaries and votes, each from the model that the settings name.

lanes     when a call that no client waits for may be made; one lane for each server
dispatch  makes every call: its lane, its credential, its timeout
calls     `Asking`: questions and votes
"""

from proxy.asking.calls import Asking, Resolver, Roles
from proxy.asking.dispatch import Caller, FinishedCall

__all__ = ["Asking", "Caller", "FinishedCall", "Resolver", "Roles"]
