"""HTTP as the proxy speaks it, on either side: connections, headers, content encodings, events."""
