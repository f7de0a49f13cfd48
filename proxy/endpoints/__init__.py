"""Endpoints: one folder for each wire protocol, with everything that the proxy knows about it except its messages."""
