"""The way of a request through the shell: from its bytes to the last byte of its reply."""
