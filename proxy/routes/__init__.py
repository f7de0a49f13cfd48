"""The endpoints: each parses its request, awaits one coroutine, and writes the response."""
