"""`condenser`: the commands. The module of a command is imported only when the command is given."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from proxy import VERSION
from proxy.errors import CommandFailed, SettingsError
from proxy.quoting import in_words, printable

OK, FAILED, USAGE = 0, 1, 2
COMMANDS = {  # the commands, with their lines in `--help`
    "serve": "Run the proxy.",
    "wrap": "Run a command behind a proxy of its own, and print a receipt at its end.",
    "check": "Check settings, store, tokenizers and upstream, and print the effective numbers for a model.",
    "demo": "Show what the proxy does with a long conversation; needs no key and no model.",
    "replay": "Compare strategies on recorded conversations, such as your own.",
    "prove": "Run tasks of your own with and without condensing, and compare what came of them.",
    "status": "Show the state of a running proxy.",
    "doctor": "Say whether requests arrive at a running proxy, and why nothing was condensed, with what to do.",
    "dashboard": "Print the address of a running proxy's dashboard, and open it.",
    "sessions": "List, show, export, revert, pin or delete the sessions of a running proxy.",
    "memory": "List, search, add, import or forget the memory cards of a session, in a running proxy.",
    "reload": "Make the proxy that runs here load keys, models, prices and log level again.",
    "models": "Renew the table of model windows and prices, from installed packages or a file.",
    "keys": 'Make, list and revoke the keys of callers, for a proxy with auth.mode = "keys".',
    "completion": "Print the script by which a shell completes these commands.",
    "mcp": "Serve the memory of your own sessions to an agent, as an MCP server on standard input and output.",
    "healthcheck": "Ask a running proxy whether it is alive; exits 0 if so.",
}
_UNLISTED = ("healthcheck",)
"""The commands that `--help` leaves out: a container asks this one, a person asks `status`."""
_PROBES = ("status", "doctor", "dashboard", "healthcheck")
"""The commands that are functions of one module; every other command is a module with its name."""
_SHIPPED = Path(__file__).with_name("_docs")
DOCUMENTS = _SHIPPED if _SHIPPED.is_dir() else Path(__file__).parents[1] / "docs"
"""Where the documents are: beside the installed program, or in the checkout."""
PAGES = {  # the page and section about a command; "" for every other
    "": "reference/commands.md#commands",
    "wrap": "reference/commands.md#one-command",
    "replay": "reference/commands.md#your-own-history",
    "prove": "guides/prove.md",
    "dashboard": "guides/dashboard.md",
    "sessions": "reference/commands.md#sessions",
    "doctor": "reference/commands.md#when-nothing-seems-to-happen",
    "memory": "reference/commands.md#memory",
    "reload": "guides/deploy.md#new-settings-without-a-restart",
    "models": "internals/upstreams.md#a-newer-table",
    "keys": "internals/security.md#keys-of-callers",
    "mcp": "reference/commands.md#an-agents-own-memory",
    "healthcheck": "guides/deploy.md#health",
}
EXAMPLES = {  # arguments, by the command, or by the command and its action; "" for the top
    "": ("demo", "wrap -- claude", "serve", "help sessions show"),
    "serve": (
        "serve",
        "serve --upstream http://127.0.0.1:11434/v1 --window 32768",
        "serve --config condenser.toml --port 9000",
    ),
    "wrap": ("wrap -- claude", "wrap -- codex", "wrap --window 60000 --store sqlite:///agent.db -- python agent.py"),
    "check": ("check --model gpt-4o", "check --offline --config condenser.toml"),
    "demo": ("demo", "demo --verbose", "demo --strategy mask+half-window --html demo.html"),
    "replay": (
        "replay ~/.claude/projects/*/*.jsonl",
        "replay --strategy recent,summary --html report.html talks.jsonl",
        "replay --live https://api.openai.com/v1 --key-env OPENAI_API_KEY --budget 2 talks.jsonl",
    ),
    "prove": ("prove --tasks tasks.toml -- claude -p", "prove --tasks tasks.toml --budget 5 -- codex exec {prompt}"),
    "status": ("status", "status --watch", "status --json --url http://127.0.0.1:9000"),
    "doctor": ("doctor", "doctor --hours 1", "doctor --json --url http://127.0.0.1:9000"),
    "dashboard": ("dashboard", "dashboard --no-open"),
    "sessions": ("sessions list", "sessions show my-session"),
    "sessions list": ("sessions list", "sessions list --json"),
    "sessions show": ("sessions show my-session", "sessions show my-session --json"),
    "sessions export": ("sessions export my-session --file session.json",),
    "sessions revert": ("sessions revert my-session", "sessions revert my-session --undo"),
    "sessions drop": ("sessions drop my-session 3", "sessions drop my-session 3 --now"),
    "sessions pin": ("sessions pin my-session 5",),
    "sessions unpin": ("sessions unpin my-session 5",),
    "sessions delete": ("sessions delete my-session",),
    "memory": ("memory list my-session", "memory search my-session 'greenhouse key'"),
    "memory list": ("memory list my-session", "memory list scope:garden --json"),
    "memory search": ("memory search my-session 'greenhouse key' --top-k 10",),
    "memory add": ("memory add my-session 'Deploys go out on Mondays.' --type decision --tag deploy",),
    "memory import": ("memory import my-session memory.json",),
    "memory forget": ("memory forget my-session 0123456789abcdef", "memory forget my-session --all"),
    "reload": ("reload", "reload --url http://127.0.0.1:9000"),
    "models": ("models update",),
    "models update": ("models update", "models update model_prices_and_context_window.json"),
    "keys": ("keys new anna", "keys list --config condenser.toml"),
    "keys new": ("keys new anna",),
    "keys list": ("keys list", "keys list --config condenser.toml"),
    "keys revoke": ("keys revoke anna", "keys revoke anna --config condenser.toml"),
    "completion": ("completion bash", "completion zsh"),
    "mcp": ("mcp", "mcp --session my-session --key-from ANTHROPIC_API_KEY"),
    "healthcheck": ("healthcheck --url http://127.0.0.1:9000",),
}
_NO_WINDOWS = (
    "condenser runs on Linux and macOS; on Windows, run it in WSL or in a container"
    f" ({DOCUMENTS / 'reference/commands.md#windows'})"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 for success, 1 for failure, 2 for wrong usage or settings."""
    if find_spec("fcntl") is None:
        print(_NO_WINDOWS, file=sys.stderr)
        return FAILED
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
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


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with examples and the place of the document; so do the parsers of its actions."""

    def format_help(self) -> str:
        name = self.prog.removeprefix("condenser").strip()
        examples = "".join(f"  condenser {example}\n" for example in EXAMPLES.get(name, ()))
        page = DOCUMENTS / PAGES.get(name.partition(" ")[0], PAGES[""])
        return f"{super().format_help()}\nexamples:\n{examples}\ndocumentation:\n  {page}\n"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command; an unknown word is an error that shows the usage of that command."""
    if words and words[0] == "help":
        words = [*words[1:], "--help"]
    given = next((word for word in words if word in COMMANDS), None)
    if words and given is None and not words[0].startswith("-"):
        listed = [name for name in COMMANDS if name not in _UNLISTED]
        near = get_close_matches(words[0], listed, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(listed)}"
        raise CommandFailed(f"there is no command {printable(words[0])}; {hint}", USAGE)
    top = parser({given})
    if not words:
        top.print_help(sys.stderr)
        top.exit(USAGE)
    arguments, unknown = top.parse_known_args(words)
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def parser(given: Container[str | None]) -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of those that are `given`: each has a module to import."""
    top = _Parser(prog="condenser", description="Condenses conversation history on the fly.")
    top.add_argument("--version", action="version", version=f"condenser {VERSION}", help="print the version")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name) if name in _UNLISTED else commands.add_parser(name, help=text)
        if name in given:
            is_probe = name in _PROBES
            module = import_module(f"proxy.commands.{'probe' if is_probe else name}")
            command.description = text if is_probe else module.__doc__
            # A command with actions sets `run` for each of them.
            command.set_defaults(run=getattr(module, name if is_probe else "run", None), parser=command)
            module.add_arguments(command)
    return top


if __name__ == "__main__":
    sys.exit(main())
