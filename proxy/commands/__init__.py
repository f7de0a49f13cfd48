"""The commands of `condenser`.

Each command is a module with its name, with `add_arguments`, `run`, and its help as docstring; `probe` has three small
commands. The other modules are shared: `running` finds the proxy that runs on this machine, `proxy_client` makes
requests to it, and `options` reads the command line.
"""
