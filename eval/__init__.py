"""What survives condensation: `python -m eval`, `make eval`."""
