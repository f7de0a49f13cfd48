"""HTTP for both sides of the proxy: connections, headers, content encodings, server-sent events."""
