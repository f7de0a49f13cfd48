"""The ladder: what a refusal may lead to, one file and one row each.

    compacting        a refused trigger for a compaction: no other form of the list helps
    reasoning         the same view with all its reasoning, or without any, as a refusal demands; once, in every mode
    opaque_head       a view without an opaque head, if the server says that it cannot read it; the head is taken back
    form              the same view in another form, or without a member that we have added, each time that a refusal
                      names one; learned if it is accepted
    memory_tool       the same view without the memory tool, if the model takes no tools; learned if that is accepted
    original          as it came, if nothing explains the refusal, because our rewriting may be the cause; if that helps
                      twice within an hour, the session is spared rewriting for an hour
    full_cache        the same, if the server's cache is full of other requests; once, after a short random wait, alone
    size              a view that has less of what was refused, by its unit: without the oldest pictures or documents,
                      with shorter strings, or condensed in what is left of the time that a request waits for models

The rows are tried in this order. The first that recognises a refusal says what is sent next; if that is nothing, the
client gets the refusal, or the rows below it are tried.
"""

from __future__ import annotations

from proxy.condensing.ladder import (
    compacting,
    form,
    full_cache,
    memory_tool,
    opaque_head,
    original,
    reasoning,
    size,
)

LADDER = (
    compacting.RUNG,
    reasoning.RUNG,
    opaque_head.RUNG,
    form.RUNG,
    memory_tool.RUNG,
    original.RUNG,
    full_cache.RUNG,
    size.RUNG,
)
