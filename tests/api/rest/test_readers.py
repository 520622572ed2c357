"""Readers are worked on a few at a time, off the event loop."""

import threading
import time
from typing import Any

import anyio
from fastapi.responses import Response

from seqplan.api.rest.state.shared import read_off_loop
from seqplan.api.service.service import Service
from seqplan.api.store.store import Store


def test_few_readers_at_once(store: Store) -> None:
    service, lock = Service(store), threading.Lock()
    at_once, most, threads = [0], [0], set()

    @read_off_loop
    def handler(service: Service, number: int) -> dict[str, Any]:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            threads.add(threading.current_thread())
        time.sleep(0.005)
        with lock:
            at_once[0] -= 1
        return {"number": number}

    bodies: list[bytes] = []

    async def read(number: int) -> None:
        answer: Response = await handler(service=service, number=number)
        bodies.append(bytes(answer.body))

    async def read_all() -> None:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(read, number)

    anyio.run(read_all)
    assert sorted(bodies) == sorted(b'{"number":%d}' % number for number in range(40))
    assert most[0] == service.readers.total_tokens == 2
    assert threading.main_thread() not in threads
