"""The commands of `condenser`.

Each is a module of its name with `add_arguments`, `run`, and its help as docstring. Other modules are shared: `running`
finds the proxy that runs here, `proxy_client` and `admin_client` make requests to it, `options` are those that set
settings, `values` are types for argparse. `effective` and `offline` belong to `check`: the numbers that it prints for a
model, and how it makes no file.
"""
