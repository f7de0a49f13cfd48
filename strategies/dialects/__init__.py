"""Dialects: one module for each wire protocol, which alone knows how its messages are written."""

from strategies.core.messages import Dialect
from strategies.dialects.chat import CHAT
from strategies.dialects.messages import MESSAGES
from strategies.dialects.responses import RESPONSES

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (CHAT, MESSAGES, RESPONSES)}
