"""The rows of the failure table about sessions: requests, answers, streams, notices and cancellation."""

import asyncio
import time
from typing import Any

from cluster.failure_row import LOSSES, Row, StreamReader, read_messages, read_status
from cluster.failures import LOST_AFTER_S, repeat_until, wait_until
from cluster.raw_client import Response, SSESession, create_stateless_request

WORKER_LOST = -32603


class Sessions(Row):
    async def prepare(self) -> None:
        await self.session.request("logging/setLevel", {"level": "warning"}, self.cluster.asker)
        for address in self.cluster.pool.addresses:  # Both workers know the session.
            assert await self._narrate(address) == 1

    async def _narrate(self, address: Any) -> int:
        """Return the number of log messages of a call."""
        _, response = await self.session.send_call("narrate", address, token=f"narrate{time.monotonic_ns()}")
        assert response.status == 200
        messages = await read_messages(response)
        assert "result" in messages[-1]
        return len(messages) - 1

    async def _set_level(self, level: str, address: Any) -> int:
        return await read_status((await self.session.send_request("logging/setLevel", {"level": level}, address))[1])

    async def check_during(self) -> None:
        cluster = self.cluster
        if self.case in ("away", "full", "partitioned"):
            assert await self._narrate(cluster.asker) == 1
            assert await self._set_level("debug", cluster.asker) == 503
            async with cluster.open_session("new", cluster.asker) as new:
                assert (await new.call("echo", token=f"new{time.monotonic_ns()}")).startswith("new")
            response = await self.session.delete(cluster.asker)
            assert await read_status(response) == 503
        if self.case in ("killed", "paused", "partitioned"):
            assert await self._narrate(cluster.receiver) == 1
        if self.case == "slow":
            assert await self._narrate(cluster.receiver) == 1
            assert await self._set_level("warning", cluster.receiver) == 200
        if self.case in LOSSES:

            async def narrate() -> bool:
                _, response = await self.session.send_call("echo", token=f"e{time.monotonic_ns()}")
                return await read_status(response) == 200

            assert await repeat_until(narrate, 5)

    async def check_after(self) -> None:
        for address in self.cluster.pool.addresses:
            assert await self._narrate(address) == 1
        assert await self._set_level("debug", self.cluster.receiver) == 200
        assert await self._narrate(self.cluster.asker) == 3
        assert await read_status(await self.session.delete(self.cluster.receiver)) in (200, 204)
        _, response = await self.session.send_call("echo", self.cluster.asker, token="after")
        assert await read_status(response) == 404


class Answers(Row):
    async def prepare(self) -> None:
        _, response = await self.session.send_call("ask", self.cluster.asker, token="answers")
        self.stream = StreamReader(response)
        await wait_until(lambda: self.stream.messages)
        self.question = self.stream.messages[0]

    async def _answer(self, address: Any) -> int:
        result = {"action": "accept", "content": {"value": "yes"}}
        return await self.session.answer(self.question, result, address)

    async def check_during(self) -> None:
        status = await self._answer(self.cluster.receiver)
        match self.case:
            case "away" | "full":
                assert status == 503
                assert self.stream.reply is None
            case "slow":
                assert status == 202
                await wait_until(lambda: self.stream.reply)
            case "killed":
                assert status == 202
                await wait_until(lambda: self.stream.is_closed)
            case "paused" | "partitioned":
                assert status == 202
            case _:
                assert status in (202, 503)

                async def is_accepted() -> bool:
                    return await self._answer(self.cluster.receiver) == 202

                assert await repeat_until(is_accepted, 5)
                await wait_until(lambda: self.stream.reply)

    async def check_after(self) -> None:
        if self.case in ("away", "full"):
            assert await self._answer(self.cluster.receiver) == 202
        if self.case != "killed":
            await wait_until(lambda: self.stream.reply)
            assert self.stream.reply["result"]["content"][0]["text"].startswith("answers yes ")
        await self.stream.close()


class Streams(Row):
    steps = 20  # for 4 seconds

    async def prepare(self) -> None:
        asker = self.cluster.asker
        _, response = await self.session.send_call("climb", asker, progress=True, token="finished", steps=3)
        finished = StreamReader(response)
        await wait_until(lambda: finished.reply)
        self.finished_ids = finished.ids
        await finished.close()
        self.number, response = await self.session.send_call(
            "climb", asker, progress=True, token="running", steps=self.steps, pause=0.2
        )
        self.stream = StreamReader(response)
        await wait_until(lambda: len(self.stream.ids) >= 2)
        self.stored_id = self.stream.ids[1]

    async def _resume(self, event_id: str) -> Response:
        return await self.session.get(event_id, self.cluster.receiver)

    async def check_during(self) -> None:
        match self.case:
            case "away":
                assert await read_status(await self._resume(self.finished_ids[1])) == 503
                await wait_until(lambda: self.stream.ids[-1].endswith("~"))
                assert await read_status(await self._resume(self.stream.ids[-1])) == 400
            case "slow" | "full":
                response = await self._resume(self.finished_ids[1])
                assert response.status == 200
                messages = await read_messages(response)
                assert [message.get("method") for message in messages[-3:]] == ["notifications/progress"] * 2 + [None]
            case "killed" | "paused":
                await self._check_lost()
            case "partitioned":
                await self._check_lost()
                await self._check_direct_reply()
            case "flushed":
                assert await read_status(await self._resume(self.finished_ids[1])) == 400
            case _:
                pass

    async def _check_lost(self) -> None:
        """Check that a reader at another worker gets the rest, and one error that names the loss."""
        begin = time.monotonic()
        response = await self._resume(self.stored_id)
        assert response.status == 200
        messages = await read_messages(response)
        assert time.monotonic() - begin < LOST_AFTER_S
        *events, reply = messages
        assert reply["id"] == self.number
        assert reply["error"]["code"] == WORKER_LOST
        assert [event["method"] for event in events] == ["notifications/progress"] * len(events)
        again = await read_messages(await self._resume(self.stored_id))
        assert again == messages

    async def _check_direct_reply(self) -> None:
        await wait_until(lambda: self.stream.reply, 30)
        assert self.stream.reply["id"] == self.number
        assert self.stream.reply["result"]["content"][0]["text"].startswith("running ")
        steps = [message["params"]["progress"] for message in self.stream.messages if "method" in message]
        assert steps == list(range(1, self.steps + 1))

    async def check_after(self) -> None:
        if self.case not in ("killed", "paused", "partitioned"):
            await self._check_direct_reply()
        if self.case in ("away", "slow", "full", "killed", "paused", "partitioned"):
            messages = await read_messages(await self._resume(self.finished_ids[1]))
            assert messages[-1]["result"]["content"][0]["text"].startswith("finished ")
        if self.case in ("away", "full"):  # Meanwhile the worker has stored these events.
            messages = await read_messages(await self._resume(self.stream.ids[-2]))
            assert messages == self.stream.messages[-1:]
        if self.case == "flushed":
            assert await read_status(await self._resume(self.stream.ids[-1])) == 400
        await self.stream.close()


class Readers(Row):
    """A reply of the asker has a reader at the receiver. Then another reader comes."""

    steps = 25  # for 5 seconds

    async def prepare(self) -> None:
        arguments = {"token": "readers", "steps": self.steps, "pause": 0.2}
        _, response = await self.session.send_call("climb", self.cluster.asker, progress=True, **arguments)
        direct = StreamReader(response)
        await wait_until(lambda: len(direct.ids) >= 2)
        self.first_id = direct.ids[0]
        await direct.close()
        self.readers: list[StreamReader] = []
        await self._open(self.cluster.receiver)

    async def _open(self, address: Any) -> int:
        response = await self.session.get(self.first_id, address)
        if response.status != 200:
            return await read_status(response)
        self.readers.append(StreamReader(response))
        return 200

    async def check_during(self) -> None:
        match self.case:
            case "slow":
                await self._check_replaced(self.cluster.asker)
            case "killed" | "paused":
                await self._check_replaced(self.cluster.receiver)
            case "full":
                assert await self._open(self.cluster.receiver) == 200
            case "partitioned":
                assert await self._open(self.cluster.receiver) == 200
                assert await self._open(self.cluster.asker) == 503
            case "away":
                for address in self.cluster.pool.addresses:
                    assert await self._open(address) == 503
            case _:
                assert await self._open(self.cluster.receiver) in (200, 400, 503)

    async def _check_replaced(self, address: Any) -> None:
        """Check that the newest reader gets the stream, and that the previous one ends."""
        assert await self._open(address) == 200
        previous, newest = self.readers
        await wait_until(lambda: previous.is_closed)
        await wait_until(lambda: newest.reply, 30)
        assert previous.reply is None

    async def check_after(self) -> None:
        # Each reader gets each event once, and the same events under the same IDs.
        events: dict[str, Any] = {}
        for reader in self.readers:
            assert len(set(reader.ids)) == len(reader.ids)
            for event in reader.events:
                if event.id is not None:
                    assert events.setdefault(event.id, event.data) == event.data
            await reader.close()
        if self.case in ("away", "full", "slow"):
            assert await self._open(self.cluster.receiver) == 200
            reader = self.readers[-1]
            await wait_until(lambda: reader.reply)
            steps = [message["params"]["progress"] for message in reader.messages[:-1]]
            assert steps == [*range(steps[0], self.steps + 1)]
            await reader.close()


class Notices(Row):
    """The GET stream is at the asker."""

    async def prepare(self) -> None:
        self.uris = [f"item://notices.{number}" for number in range(4)]
        for uri in self.uris:
            await self.session.request("resources/subscribe", {"uri": uri})
        response = await self.session.get(address=self.cluster.asker)
        assert response.status == 200
        self.stream = StreamReader(response)
        await self._touch(0, self.cluster.receiver)
        await wait_until(lambda: self._count(0) == 1)

    async def _touch(self, number: int, address: Any) -> None:
        await self.session.call("touch", address, token=f"t{time.monotonic_ns()}", uri=self.uris[number])

    def _count(self, number: int) -> int:
        return self.stream.count("notifications/resources/updated", uri=self.uris[number])

    async def check_during(self) -> None:
        cluster = self.cluster
        match self.case:
            case "away" | "full" | "partitioned":
                await self._touch(1, cluster.asker)
                await wait_until(lambda: self._count(1) == 1)
                await self._touch(2, cluster.receiver)
                await asyncio.sleep(0.5)
                assert not self._count(2) or self.case == "full"
            case "slow":
                await self._touch(1, cluster.receiver)
                await wait_until(lambda: self._count(1) == 1)
            case "killed":
                await wait_until(lambda: self.stream.is_closed)
                await self._touch(1, cluster.receiver)
                await self._continue_at_receiver()
                await wait_until(lambda: self._count(1) == 1)
            case "paused":
                await self._touch(1, cluster.receiver)
            case _:
                await wait_until(lambda: all(self._count(number) > (not number) for number in range(4)))
                assert self.stream.count("notifications/tools/list_changed") in (1, 2)

    async def _continue_at_receiver(self) -> None:
        last_id = self.stream.ids[-1]
        await self.stream.close()
        events = self.stream.events

        async def is_accepted() -> bool:
            response = await self.session.get(last_id, self.cluster.receiver)
            if response.status != 200:
                assert await read_status(response) == 409
                return False
            self.stream = StreamReader(response)
            self.stream.events[:0] = events
            return True

        assert await repeat_until(is_accepted, 6)

    async def check_after(self) -> None:
        if self.case in ("away", "full", "partitioned"):
            await wait_until(lambda: self._count(2) == 1)
        if self.case == "paused":
            await wait_until(lambda: self._count(1) == 1)
        count = self._count(3)
        assert count in ((1, 2) if self.case in LOSSES else (0,))
        await self._touch(3, self.cluster.receiver)
        await wait_until(lambda: self._count(3) == count + 1)
        max_count = 2 if self.case in LOSSES else 1
        assert self._count(1) <= max_count
        assert self._count(2) <= max_count
        await self.stream.close()


class Cancellation(Row):
    async def prepare(self) -> None:
        self.streams: list[StreamReader] = []
        self.numbers: list[int] = []
        for number in range(2):
            request_id, response = await self.session.send_call(
                "hang", self.cluster.asker, progress=True, token=f"hang{number}"
            )
            self.numbers.append(request_id)
            self.streams.append(StreamReader(response))
        await wait_until(lambda: all(stream.messages for stream in self.streams))

    async def _cancel(self, number: int, address: Any) -> None:
        params = {"requestId": self.numbers[number]}
        assert await self.session.notify("notifications/cancelled", params, address) == 202

    def _is_cancelled(self, number: int) -> bool:
        return bool(self.cluster.pool.read_effects()[f"hang{number}", "cancelled"])

    async def check_during(self) -> None:
        await self._cancel(0, self.cluster.receiver)
        match self.case:
            case "away" | "full" | "partitioned":
                await self._cancel(1, self.cluster.asker)
                await wait_until(lambda: self._is_cancelled(1))
                assert not self._is_cancelled(0)
            case "slow":
                await wait_until(lambda: self._is_cancelled(0))
            case "killed":
                await wait_until(lambda: all(stream.is_closed for stream in self.streams))
            case _:
                pass

    async def check_after(self) -> None:
        if self.case == "paused":
            await wait_until(lambda: self._is_cancelled(0))
        if self.case in (*LOSSES, "slow"):
            await self._cancel(1, self.cluster.receiver)
            await wait_until(lambda: self._is_cancelled(1))
        for stream in self.streams:
            await stream.close()


class Listeners(Row):
    """`subscriptions/listen` at the asker."""

    async def prepare(self) -> None:
        self.uris = [f"item://listen.{number}" for number in range(4)]
        wanted = {"toolsListChanged": True, "resourceSubscriptions": self.uris}
        headers, body = create_stateless_request("subscriptions/listen", {"notifications": wanted})
        response = await self.session.pool.send("POST", headers, body, self.cluster.asker)
        assert response.status == 200
        self.stream = StreamReader(response)
        await wait_until(lambda: self.stream.messages)  # the acknowledgement

    async def _touch(self, number: int, address: Any) -> None:
        await self.session.call("touch", address, token=f"l{time.monotonic_ns()}", uri=self.uris[number])

    def _count(self, number: int) -> int:
        messages = [message for message in self.stream.messages if message.get("method", "").endswith("/updated")]
        return sum(message["params"]["uri"] == self.uris[number] for message in messages)

    async def check_during(self) -> None:
        match self.case:
            case "away" | "full" | "partitioned":
                await self._touch(1, self.cluster.asker)
                await wait_until(lambda: self._count(1) == 1)
                await self._touch(2, self.cluster.receiver)
            case "slow":
                await self._touch(1, self.cluster.receiver)
                await wait_until(lambda: self._count(1) == 1)
            case "killed":
                await wait_until(lambda: self.stream.is_closed)
            case "paused":
                await self._touch(1, self.cluster.receiver)
            case _:
                await wait_until(lambda: all(self._count(number) for number in range(4)))
                assert self.stream.count("notifications/tools/list_changed") in (1, 2)

    async def check_after(self) -> None:
        if self.case in ("away", "full", "partitioned"):
            await wait_until(lambda: self._count(2) == 1)
        if self.case == "paused":
            await wait_until(lambda: self._count(1) == 1)
        if self.case != "killed":
            count = self._count(3)
            await self._touch(3, self.cluster.receiver)
            await wait_until(lambda: self._count(3) == count + 1)
        await self.stream.close()


class SSE2024(Row):
    """The stream of the HTTP+SSE transport is at the asker, and messages go to the receiver."""

    async def prepare(self) -> None:
        self.client = SSESession(self.session.pool)
        response = await self.client.open_stream(self.cluster.asker)
        assert response.status == 200
        self.stream = StreamReader(response)
        await wait_until(lambda: self.stream.events)
        self.client.path = self.stream.events[0].data
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        assert await self.client.post(request, self.cluster.receiver) == 202
        await wait_until(lambda: self._find(0))
        notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert await self.client.post(notification, self.cluster.receiver) == 202

    def _find(self, number: int) -> Any:
        messages = [message for message in self.stream.messages if isinstance(message, dict)]
        return next((message for message in messages if message.get("id") == number), None)

    async def _call(self, number: int, address: Any) -> int:
        params = {"name": "echo", "arguments": {"token": f"sse{number}"}}
        return await self.client.post(
            {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}, address
        )

    async def check_during(self) -> None:
        status = await self._call(1, self.cluster.receiver)
        match self.case:
            case "away" | "full":
                assert status == 503
                assert await self._call(2, self.cluster.asker) == 202
                await wait_until(lambda: self._find(2))
            case "slow":
                assert status == 202
                await wait_until(lambda: self._find(1))
            case "killed":
                await wait_until(lambda: self.stream.is_closed)

                async def is_unknown() -> bool:
                    return await self._call(3, self.cluster.receiver) == 404

                assert await repeat_until(is_unknown, 6)
            case "partitioned":
                assert status == 202
                assert await self._call(2, self.cluster.asker) == 202
                await wait_until(lambda: self._find(2))
            case "paused":
                assert status == 202
            case _:
                assert status in (202, 503)

    async def check_after(self) -> None:
        if self.case != "killed":
            assert await self._call(4, self.cluster.receiver) == 202
            await wait_until(lambda: self._find(4))
            assert self._find(4)["result"]["content"][0]["text"].startswith("sse4 ")
        if self.case == "paused":
            await wait_until(lambda: self._find(1))
        await self.stream.close()


class SessionNotices(Row):
    """Notices to one session. Its GET stream is at the asker."""

    async def prepare(self) -> None:
        self.session_id = await self.session.call("get_session_id", token="notices")
        response = await self.session.get(address=self.cluster.asker)
        assert response.status == 200
        self.stream = StreamReader(response)
        await self._notify("first", self.cluster.receiver)
        await self._wait_for("first")

    async def _notify(self, name: str, address: Any) -> None:
        await self.session.call("complete_elicitation", address, token=name, session_id=self.session_id)

    def _count(self, name: str) -> int:
        return self.stream.count("notifications/elicitation/complete", elicitationId=name)

    async def _wait_for(self, name: str) -> None:
        await wait_until(lambda: self._count(name))
        assert self._count(name) == 1

    async def check_during(self) -> None:
        cluster = self.cluster
        match self.case:
            case "away" | "full" | "partitioned":
                await self._notify("direct", cluster.asker)
                await self._wait_for("direct")
                await self._notify("later", cluster.receiver)
            case "slow":
                await self._notify("direct", cluster.receiver)
                await self._wait_for("direct")
            case "killed":
                await wait_until(lambda: self.stream.is_closed)
                await self._open_at_receiver()
                await self._notify("direct", cluster.receiver)
                await self._wait_for("direct")
            case "paused":
                await self._notify("later", cluster.receiver)
            case _:
                pass

    async def _open_at_receiver(self) -> None:
        async def is_accepted() -> bool:
            response = await self.session.get(address=self.cluster.receiver)
            if response.status != 200:
                assert await read_status(response) == 409
                return False
            self.stream = StreamReader(response)
            return True

        await self.stream.close()
        assert await repeat_until(is_accepted, 6)

    async def check_after(self) -> None:
        if self.case in ("away", "full", "partitioned", "paused"):
            await self._wait_for("later")
        await self._notify("last", self.cluster.receiver)
        await self._wait_for("last")
        assert max(self._count(name) for name in ("first", "direct", "later")) <= 1
        await self.stream.close()
