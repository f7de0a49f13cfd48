"""Measurements of what the proxy adds; `python -m bench` runs them."""
