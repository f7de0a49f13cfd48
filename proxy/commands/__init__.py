"""The commands of `condenser`: each has a module of its name with `add_arguments`, `run` and its help as docstring.

What several of them share is beside them: `operating`, `running` and `values`; and for `check` alone `effective`,
what it prints of a model, and `untouched`, how it makes no file.
"""
