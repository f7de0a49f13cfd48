"""Endpoints: one folder for each wire protocol, with all that the proxy knows of it besides its messages."""
