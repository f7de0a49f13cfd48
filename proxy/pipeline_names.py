"""Reads the names of pipelines, and says what is wrong with a name."""

from __future__ import annotations

from difflib import get_close_matches

from proxy.quoting import quoted
from strategies import LONGEST, OBSERVE, TABLE, Pipeline, parse


def pipeline_named(text: str) -> Pipeline:
    """The pipeline with this name; raises `ValueError` that says which stage is wrong."""
    pipeline = parse(text)
    if pipeline is None:
        raise ValueError(_why_no_pipeline(text))
    return pipeline


def _why_no_pipeline(text: str) -> str:
    if len(text) > LONGEST:
        return f"a pipeline has at most {LONGEST} characters, not {len(text):,}"
    names = [name.strip() for name in text.removeprefix(OBSERVE).split("+")]
    unknown = next((name for name in names if name not in TABLE), None)
    known = f"known: {', '.join(TABLE)}, joined with '+'"
    if unknown is None:
        return "'off' cannot be joined with other strategies"
    if not unknown:
        place = f" in {quoted(text)}" if text else ""
        return f"a strategy is missing{place}; {known}"
    place = f" in {quoted(text)}" if unknown != text else ""
    near = get_close_matches(unknown, TABLE, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"unknown strategy {quoted(unknown)}{place}{hint} {known}"
