"""What LiteLLM leaves behind in a process, and how it goes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import litellm
import openai


@contextmanager
def litellm_tidied() -> Iterator[None]:
    """LiteLLM takes the thread's event loop and keeps a client per address: both are closed here."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    kept: Any = litellm.in_memory_llm_clients_cache
    quiet, litellm.suppress_debug_info = litellm.suppress_debug_info, True
    try:
        yield
    finally:
        litellm.suppress_debug_info = quiet
        for client in kept.cache_dict.values():
            if isinstance(client, openai.OpenAI):
                client.close()
        kept.flush_cache()
        asyncio.set_event_loop(None)
        loop.close()
