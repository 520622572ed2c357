"""Many HTTP clients in one process, each with a persistent connection."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Answered:
    """Status and body of an answer; ``at``: when all of it was here (perf_counter, s)."""

    status: int
    body: bytes
    at: float


class Client:
    """One connection, kept open, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str, port: int) -> Client:
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, method: str, path: str, body: bytes = b"") -> Answered:
        """Send a request and read the whole answer, which must have a Content-Length."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        self._writer.write(f"{line}{kind}\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        _, named, rest = head.partition(b"\r\ncontent-length:")
        length = int(rest.partition(b"\r\n")[0]) if named else 0
        answer = await self._reader.readexactly(length)
        return Answered(status, answer, time.perf_counter())

    def close(self) -> None:
        self._writer.close()


async def connect_all(host: str, port: int, clients: int) -> list[Client]:
    """This many clients, connected one after another."""
    return [await Client.connect(host, port) for _ in range(clients)]
