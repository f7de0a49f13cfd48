"""The commands of `condenser`; each module has `add_arguments`, `run` and its help as docstring."""
