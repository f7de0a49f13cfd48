"""Run the proxy."""

from __future__ import annotations

import argparse

import uvicorn

from proxy.app import create_app
from proxy.cli import add_settings_arguments, settings_from
from proxy.settings import Settings
from proxy.store import redacted
from proxy.telemetry import configure_logging

KEEP_ALIVE = 75
DRAIN = 30


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `serve`."""
    command.add_argument("--host", help="the address to listen on (127.0.0.1)")
    command.add_argument("--port", type=int, help="the port to listen on (8484)")
    add_settings_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    settings = settings_from(arguments)
    configure_logging(settings.log_format)
    print(banner(settings), flush=True)
    server = uvicorn.Server(server_config(settings))
    server.run()
    return 0 if server.started else 3


def server_config(settings: Settings) -> uvicorn.Config:
    """uvicorn as a proxy wants it: upstream's own `date` and `server`, no access log, a bounded drain."""
    return uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_level="warning",
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN,
    )


def banner(settings: Settings) -> str:
    """What a person wants to see first: the line to paste."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return (
        f"condenser listens on http://{host}:{settings.port}/v1\n"
        f"  upstream {settings.upstream.base_url}\n"
        f"  store    {redacted(settings.store.url)}\n"
        f"  strategy {settings.strategy}\n"
        f'  paste    OpenAI(base_url="http://{host}:{settings.port}/v1")'
    )
