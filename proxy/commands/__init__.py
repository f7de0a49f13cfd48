"""The commands of `condenser`.

Each is a module of its name with `add_arguments`, `run`, and its help as docstring, but for those in `probe`. Other
modules are shared: `running` finds the proxy that runs here, `proxy_client` makes requests to it, and `options` reads
what the command line says.
"""
