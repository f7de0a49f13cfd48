"""Serve the memory of your own sessions to an agent, as an MCP server on standard input and output.

It asks a running proxy: a proxy of one person with the token for handles in its note, so that an agent which logs in by
subscription reads its sessions too; any other with the key that the agent's own requests have. So it reads what that
person's, or that key's, requests have left there and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from proxy import VERSION
from proxy.commands.proxy_client import URL_HELP, ask, message_of
from proxy.commands.running import note_at
from proxy.errors import SettingsError
from proxy.values import json_or_none

if TYPE_CHECKING:
    from mcp.server import MCPServer  # takes a second to load

_BEARERS = ("OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_PLAIN = ("ANTHROPIC_API_KEY", "AZURE_OPENAI_API_KEY")
"""Variables with a key that clients send by itself, in a header such as `x-api-key`."""
_TIMEOUT = 60.0  # seconds; a long session is read and searched whole
_INSTRUCTIONS = (
    "What earlier messages of this conversation said, when they are no longer shown or only in part. A line such as"
    " '[result of ... left out: ...; handle 1a2b3c4d]' carries a handle: `expand` gives the original of it."
)
_Session = Annotated[str | None, Field(description="The session's id; not needed where only one can be meant.")]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    command.add_argument("--session", metavar="ID", help="the session that is meant where a call names none")
    known = ", ".join((*_BEARERS, *_PLAIN))
    help_ = f"the variable with the key that the agent uses; by default none at a proxy of one person, else of {known}"
    command.add_argument("--key-from", metavar="VARIABLE", help=help_)


def run(arguments: argparse.Namespace) -> None:
    made(arguments).run()


def made(arguments: argparse.Namespace) -> MCPServer:
    """The server; raises `SettingsError`."""
    from mcp.server import MCPServer

    server = MCPServer("condenser", version=VERSION, instructions=_INSTRUCTIONS, log_level="WARNING")
    url, variable = arguments.url, arguments.key_from
    _headers(url, variable)  # so that a wrong choice is said at once
    _add_tools(server, url, partial(_headers, url, variable), arguments.session)
    return server


def _headers(url: str | None, variable: str | None) -> dict[str, str]:
    """What shows whose sessions are meant, read anew for each call: a proxy may be started again. See `credential`."""
    note = note_at(url) if variable is None else None
    if note and note.handles:
        return {"Authorization": f"Bearer {note.handles}"}
    return credential(variable, os.environ)


def credential(variable: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The header with the key in `variable`; no header if there is no key. Raises `SettingsError`."""
    if variable is None:
        found = [name for name in (*_BEARERS, *_PLAIN) if environment.get(name)]
        if len(found) > 1:
            raise SettingsError(
                f"{' and '.join(found)} are set; --key-from names the one that the agent's requests have"
            )
        if not found:
            return {}
        (variable,) = found
    key = environment.get(variable, "").strip()
    if not key:
        raise SettingsError(f"--key-from names {variable}, which is not set")
    return {"x-api-key": key} if variable in _PLAIN else {"Authorization": f"Bearer {key}"}


def _add_tools(
    server: MCPServer, url: str | None, headers: Callable[[], Mapping[str, str]], session: str | None
) -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    async def answered(action: str, members: Mapping[str, object]) -> dict[str, Any]:
        body = json.dumps(members).encode()
        path = f"/_condenser/own/{action}"
        asking = partial(ask, url, path, method="POST", headers=headers(), timeout=_TIMEOUT, body=body)
        reply = await asyncio.to_thread(asking)
        document = json_or_none(reply.body)
        if reply.status != 200 or not isinstance(document, dict):
            raise ToolError(message_of(document) or reply.problem)
        return document

    @server.tool(structured_output=False)
    async def search_memory(
        query: Annotated[str, Field(description="What to look for: names, terms, a short question.")],
        session: _Session = session,
    ) -> str:
        """Search the whole conversation, earlier parts included, for passages word for word, best match first.

        Use it before saying that something is not known.
        """
        found = await answered("search", {"query": query, "session": session})
        passages = [f"[{_place(hit)}]\n{hit['text']}" for hit in found["data"]]
        return "\n\n".join(passages) or "Nothing matches."

    @server.tool(structured_output=False)
    async def expand(
        handle: Annotated[str, Field(description="The 8 hexadecimal digits behind 'handle' in the line.")],
        session: _Session = session,
    ) -> str:
        """Get back word for word what a line says was left out, by the handle that the line carries.

        A file may have changed since: this is what was read then.
        """
        found = await answered("expand", {"handle": handle, "session": session})
        return str(found["text"])


def _place(hit: Mapping[str, Any]) -> str:
    if hit["object"] == "card":
        return f"{hit['type']}, noted of what the {hit['role']} said"
    part = f", part {hit['part'] + 1} of {hit['parts']}" if hit["parts"] > 1 else ""
    return f"message {hit['place'] + 1}, {hit['role']}{part}"
