"""Free ports for servers that must be told theirs before they start.

A port that the kernel picks may go to any connection that is opened before the server binds it. So they are taken from
below the range from which the kernel gives connections their own (32768 and up on Linux, 49152 elsewhere), a different
one each time, from a start that differs between processes.
"""

import itertools
import os
import socket

_FIRST, _COUNT = 20_000, 12_000

_steps = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """A port of this machine on which nobody listens, and that is given once."""
    ports = (_FIRST + step % _COUNT for step in itertools.islice(_steps, _COUNT))
    return next(port for port in ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
