"""The commands of `condenser`: each has a module of its name with `add_arguments`, `run` and its help as docstring.

What several of them share is beside them: `operating`, `running`, `values`, and `effective` for what `check` prints.
"""
