"""Dialects: one module for each wire protocol, which alone knows how its messages are written."""
