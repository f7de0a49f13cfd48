"""The endpoints: each parses, awaits one coroutine, and writes."""
