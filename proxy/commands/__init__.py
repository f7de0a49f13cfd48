"""The commands of `condenser`.

Each is a module of its name with `add_arguments`, `run`, and its help as docstring. Other modules are shared: `running`
and `operating` make requests to a running proxy, `values` are types for argparse. `effective` and `untouched` belong to
`check`: the numbers that it prints for a model, and how it makes no file.
"""
