"""Show the live conversations of a running proxy: a row for each, with window, action, saved tokens and cost."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from proxy.commands.proxy_client import add_proxy_arguments, request_json, table
from proxy.quoting import printable

EVERY = 1.0
_CLEAR = "\x1b[H\x1b[2J"
_SHOWN = 36
COLUMNS = ("SESSION", "MODEL", "WINDOW", "ACTION", "REQUESTS", "CONDENSED", "SAVED", "COST", "IDLE")
Row = Mapping[str, Any]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--every", metavar="SECONDS", type=float, default=EVERY, help=f"how often ({EVERY:g})")
    command.add_argument("--once", action="store_true", help="print the rows as they are now, and end")
    add_proxy_arguments(command)


def run(arguments: argparse.Namespace) -> None:
    """Shows the rows until it is interrupted: as a table in a terminal, else a line for each row that changes."""
    if not arguments.every > 0:
        arguments.parser.error("--every must be more than 0")
    seen: dict[tuple[str, str], int] = {}
    while True:
        document = request_json(arguments, "/_condenser/live", hint_404="it has no live rows: its admin API is off")
        rows = [row for row in document["data"] if arguments.tenant in (None, row["tenant"])]
        if arguments.once or sys.stdout.isatty():
            clear = "" if arguments.once else _CLEAR
            print(clear + "\n".join(table([COLUMNS, *map(_cells, rows)])), flush=True)
        else:
            # The oldest change comes first.
            for row in reversed(rows):
                key = row["tenant"], row["id"]
                if seen.get(key) != row["requests"]:
                    seen[key] = row["requests"]
                    print("  ".join(_cells(row)[:-1]), flush=True)
        if arguments.once:
            return
        time.sleep(arguments.every)


def _cells(row: Row) -> tuple[str, ...]:
    window, saved = row["window"], row["client_tokens"] - row["forwarded_tokens"]
    share = f" ({saved / row['client_tokens']:.0%})" if row["client_tokens"] else ""
    reason = f" {row['reason']}" if row["reason"] else ""
    return (
        printable(row["id"], _SHOWN),
        printable(row["model"], _SHOWN),
        f"{row['tokens']:,} of {window:,}" if window else f"{row['tokens']:,} of ?",
        f"{row['action']}{reason}",
        f"{row['requests']:,}",
        str(len(row["condensations"])),
        f"{saved:,}{share}",
        "-" if row["cost"] is None else f"{row['cost']:,.4f}",
        f"{max(time.time() - row['last_at'], 0):.0f} s",
    )
