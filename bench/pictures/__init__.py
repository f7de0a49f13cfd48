"""`python -m bench.pictures` draws the pictures of the documents, from what the program does, into docs/images."""

import asyncio
import json

from bench.pictures.diagrams import deployments, request_path, session_branches
from bench.pictures.tokens import marks, tokens_per_request
from bench.pictures.window import parts_of, window_bar
from proxy.commands.demo import Run


def drawn(run: Run) -> dict[str, str]:
    """The pictures that come out the same on every machine, by the names of their files."""
    condensed = run.ways[-1]
    return {
        "tokens-per-request.svg": tokens_per_request(json.loads(json.dumps(run.document()))),
        "marks.svg": marks(condensed.requests[:60], condensed.budget),
        "window.svg": window_bar(asyncio.run(parts_of(len(run.ways[0].requests)))),
        "request-path.svg": request_path(),
        "session-branches.svg": session_branches(),
        "deployments.svg": deployments(),
    }
