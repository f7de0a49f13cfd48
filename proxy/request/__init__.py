"""From the bytes of a request to what is known of it: body, caller, tokens."""
