"""`condenser`: the commands. The module of a command is imported only when the command is given."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from proxy.errors import CommandFailed, SettingsError
from proxy.package import VERSION
from proxy.quoting import in_words

OK, FAILED, USAGE = 0, 1, 2
COMMANDS = {  # the commands, with their lines in `--help`
    "serve": "Run the proxy.",
    "wrap": "Run a command behind a proxy of its own, and print a receipt at its end.",
    "check": "Check settings, store, tokenizers and upstream, and print the effective numbers for a model.",
    "demo": "Show what the proxy does with a long conversation; needs no key and no model.",
    "replay": "Compare strategies on recorded conversations, such as your own.",
    "status": "Show the state of a running proxy.",
    "dashboard": "Print the address of a running proxy's dashboard, and open it.",
    "sessions": "List, show, export, revert, pin or delete the sessions of a running proxy.",
    "memory": "List, search, add, import or forget the memory cards of a session, in a running proxy.",
    "mcp": "Serve the memory of your own sessions to an agent, as an MCP server on standard input and output.",
    "healthcheck": "Ask a running proxy whether it is alive; exits 0 if so.",
}
_PROBES = ("status", "dashboard", "healthcheck")
"""The commands that are functions of one module; every other command is a module with its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 for success, 1 for failure, 2 for wrong usage or settings."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        code: int = arguments.run(arguments) or OK
        sys.stdout.flush()
    except CommandFailed as error:
        print(f"condenser: {error}", file=sys.stderr)
        return error.code
    except SettingsError as error:
        print("\n".join(f"condenser: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output, such as `head`, wants no more of it. The rest of the buffer is thrown away.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"condenser: {in_words(error)}", file=sys.stderr)
        return FAILED
    return code


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command; an unknown word is an error that shows the usage of that command."""
    given = next((word for word in words if word in COMMANDS), None)
    top = argparse.ArgumentParser(prog="condenser", description="Condenses conversation history on the fly.")
    top.add_argument("--version", action="version", version=f"condenser {VERSION}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == given:
            is_probe = name in _PROBES
            module = import_module(f"proxy.commands.{'probe' if is_probe else name}")
            command.description = text if is_probe else module.__doc__
            # A command with actions sets `run` for each of them.
            command.set_defaults(run=getattr(module, name if is_probe else "run", None), parser=command)
            module.add_arguments(command)
    arguments, unknown = top.parse_known_args(words)
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
