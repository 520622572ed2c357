"""A port that a test gives to another process, which listens on it later."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port of loopback that nothing listens on, of those that the system chooses for nothing.

    A port that the system has chosen may be that of a connection before it is listened on. Systems
    choose from 32768 (Linux) or 49152 on. Seeds of tests do not count: two would choose the same.
    """
    for port in random.SystemRandom().sample(range(10_000, 32_768), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port of loopback between 10000 and 32768")
