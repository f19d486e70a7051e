"""Test stored questions: written to disk, answered by another host, and checked again."""

import asyncio
import contextlib
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Context, Elicit, InputRequired, MCPError, Policy, PolicyError, Server, rule
from dovetail.errors import InputRequestError, NotSupported
from dovetail.host import argument
from dovetail.host.consent.consent import Allow, AllowWithChanges, Deny
from dovetail.host.consent.inbox import CallAwaitingConsent, FileConsent, PendingConsent
from dovetail.host.host import Host, get_parts
from support.polling import TIMEOUT_S, wait_until

SECRETS = ["a secret of the server's"]
CALLS = Policy("ask", [rule("allow", kind="tool.call")])


class Leave(Server):
    """Asks before it does something; a second one of it goes on where the first stood."""

    def __init__(self, done: list[Any], description: str = "Approve leave.") -> None:
        super().__init__("hr", secret_keys=SECRETS)
        self.add_tool(self.approve, description=description)
        self.done = done

    async def approve(self, ctx: Context, days: int) -> str:
        note = await ctx.elicit(f"Approve {days} days?", str)
        again = await ctx.elicit("Sure?", bool)
        self.done.append((days, note, again))
        return f"{days} days: {note}"


def text(result: Any) -> str:
    return result.content[0].text


@asynccontextmanager
async def life(path: Path, server: Server, policy: Policy | None = None, **options: Any) -> AsyncIterator[Host]:
    """A process's worth of a host."""
    consent = FileConsent(path, **options)
    async with Host(policy=policy, consent=consent) as host:
        host.add("hr", server)
        yield host
    consent.close()


async def open_questions(host: Host) -> list[PendingConsent]:
    return [item async for item in host.list_pending()]


async def test_consent_and_the_servers_questions_outlive_three_hosts(tmp_path: Path) -> None:
    path, done = tmp_path / "inbox.sqlite", []
    async with life(path, Leave(done)) as host:
        out = await host.call("hr.approve", {"days": 3}, wait=False)
        assert isinstance(out, CallAwaitingConsent)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with life(path, Leave(done)) as host:
        (item,) = await open_questions(host)
        assert (item.ticket, item.request.kind, item.is_durable) == (out.ticket, "tool.call", True)
        out = await host.answer(item.ticket, True)
        assert isinstance(out, CallAwaitingConsent)
        assert out.requests[0].details["message"] == "Approve 3 days?"
    async with life(path, Leave(done)) as host:
        out = await host.answer(out.ticket, {"value": "enjoy"})
        assert [item.request.details["message"] for item in await open_questions(host)] == ["Sure?"]
    async with life(path, Leave(done)) as host:
        result = await host.answer(out.ticket, {"value": True})
        assert text(result) == "3 days: enjoy"
        assert await open_questions(host) == []
        with pytest.raises(NotSupported):
            await host.answer(out.ticket, {"value": True})
    assert done == [(3, "enjoy", True)]


async def test_declining_later(tmp_path: Path) -> None:
    done: list[Any] = []
    async with life(tmp_path / "inbox", Leave(done), CALLS) as host:
        out = await host.call("hr.approve", {"days": 3}, wait=False)
        assert "declined" in text(await host.answer(out.ticket, Deny()))
    async with life(tmp_path / "inbox", Leave(done)) as host:
        out = await host.call("hr.approve", {"days": 3}, wait=False)
        with pytest.raises(PolicyError, match="not today"):
            await host.answer(out.ticket, Deny("not today"))
    assert done == []


async def test_what_changed_meanwhile_is_not_what_was_agreed_to(tmp_path: Path) -> None:
    done: list[Any] = []
    async with life(tmp_path / "inbox", Leave(done)) as host:
        one = await host.call("hr.approve", {"days": 3}, wait=False)
        other = await host.call("hr.approve", {"days": 4}, wait=False)
    async with life(tmp_path / "inbox", Leave(done, "Approve leave, and a raise.")) as host:
        with pytest.raises(PolicyError, match=r"hr\.approve"):
            await host.answer(one.ticket, True)
    async with life(
        tmp_path / "inbox", Leave(done), Policy("ask", [rule("deny", server="hr", reason="closed")])
    ) as host:
        with pytest.raises((PolicyError, NotSupported)):
            await host.answer(other.ticket, True)
    assert done == []


async def test_a_grant_given_later_holds(tmp_path: Path) -> None:
    plain = Server("hr")
    plain.add_tool(lambda: "done", name="work")
    async with life(tmp_path / "inbox", plain) as host:
        out = await host.call("hr.work", wait=False)
        assert text(await host.answer(out.ticket, Allow("session"))) == "done"
        assert text(await host.call("hr.work", wait=False)) == "done"


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_a_waiting_call_gets_the_answer_from_another_host(tmp_path: Path, revision: str) -> None:
    """The call waits with its connection; the answer comes from another host that has the same file."""
    done: list[Any] = []
    path = tmp_path / "inbox"
    consent = FileConsent(path)
    async with Host(policy=CALLS, consent=consent) as host, life(path, Leave(done)) as other:
        host.add("hr", Leave(done), protocol_version=revision)
        call = asyncio.create_task(host.call("hr.approve", {"days": 5}))
        for content in ({"value": "yes"}, {"value": True}):
            (item,) = await wait_until(lambda: open_questions(other))
            assert not item.is_durable
            assert await other.answer(item.ticket, content) is None
            await wait_until(lambda ticket=item.ticket: gone(other, ticket))
        async with asyncio.timeout(TIMEOUT_S):
            assert text(await call) == "5 days: yes"
    consent.close()
    assert done == [(5, "yes", True)]


async def gone(host: Host, ticket: str) -> bool:
    return ticket not in {item.ticket for item in await open_questions(host)}


async def test_a_question_of_an_ended_call_is_not_asked(tmp_path: Path) -> None:
    async with life(tmp_path / "inbox", Leave([]), CALLS) as host:
        call = asyncio.create_task(host.call("hr.approve", {"days": 5}))
        await wait_until(lambda: open_questions(host))
        call.cancel()
        await asyncio.wait([call])
        await wait_until(lambda: nothing_open(host))


async def nothing_open(host: Host) -> bool:
    return not await open_questions(host)


async def test_a_question_has_its_time(tmp_path: Path) -> None:
    async with life(tmp_path / "inbox", Leave([]), ttl=0.0) as host:
        out = await host.call("hr.approve", {"days": 3}, wait=False)
        assert await open_questions(host) == []
        with pytest.raises(NotSupported):
            await host.answer(out.ticket, True)
        with pytest.raises(PolicyError, match=r"hr\.approve"):
            await host.call("hr.approve", {"days": 3})


async def test_request_state_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    async with life(path, Leave([]), CALLS, secret_key="sixteen bytes or more") as host:
        out = await host.call("hr.approve", {"days": 12345}, wait=False)
        with contextlib.closing(sqlite3.connect(path)) as database:
            ((work,),) = database.execute("SELECT work FROM asked").fetchall()
        assert b"12345" not in work
    async with life(path, Leave([]), CALLS, secret_key="another secret of mine") as host:
        with pytest.raises(ValueError, match="secret"):
            await host.answer(out.ticket, {"value": "x"})
        assert len(await open_questions(host)) == 1
    with pytest.raises(ValueError, match="16"):
        FileConsent(path, secret_key="short")


async def test_other_brokers_keep_no_inbox() -> None:
    async with Host() as host:
        with pytest.raises(InputRequestError, match="FileConsent"):
            await open_questions(host)


# What was shown is what is done, and nothing is lost on the way.


def worker(description: str = "Works.", **more: Any) -> Server:
    app = Server("hr", secret_keys=SECRETS)
    app.add_tool(lambda path="": f"worked on {path}", name="work", description=description, **more)
    return app


async def changed_and_called(host: Host, app: Server) -> CallAwaitingConsent:
    """A call after the definition changed, put off."""
    app.remove_tool("work")
    app.add_tool(lambda path="": f"evil with {path}", name="work", description="Works. See https://evil.example")

    async def seen() -> bool:
        return "evil" in str((await get_parts(host).servers.list()[0].listed("tool")).get("work"))

    await wait_until(seen)
    return await host.call("hr.work", {"path": "secret"}, wait=False)


async def test_consent_to_a_changed_definition_is_not_consent_to_the_call(tmp_path: Path) -> None:
    app = worker()
    async with life(tmp_path / "inbox", app) as host:
        out = await host.call("hr.work", {"path": "a"}, wait=False)
        assert text(await host.answer(out.ticket, True)) == "worked on a"
        out = await changed_and_called(host, app)
        (item,) = await open_questions(host)
        assert (item.request.kind, item.request.arguments) == ("definition.changed", None)
        again = await host.answer(out.ticket, Allow("session"))
        assert isinstance(again, CallAwaitingConsent)
        (item,) = await open_questions(host)
        assert (item.request.kind, item.request.arguments) == ("tool.call", {"path": "secret"})
        assert get_parts(host).authorizer.grants.list() == []
        assert text(await host.answer(again.ticket, True)) == "evil with secret"
        out = await host.call("hr.work", {"path": "b"}, wait=False)
        assert [one.request.kind for one in await open_questions(host)] == ["tool.call"]  # the definition was agreed to


async def test_a_yes_to_a_changed_definition_does_what_is_allowed(tmp_path: Path) -> None:
    app = worker()
    async with life(tmp_path / "inbox", app, CALLS) as host:
        await host.call("hr.work", {"path": "a"}, wait=False)
        out = await changed_and_called(host, app)
        assert text(await host.answer(out.ticket, True)) == "evil with secret"
        assert text(await host.call("hr.work", {"path": "b"}, wait=False)) == "evil with b"


async def test_a_changed_definition_that_is_not_agreed_to_stays_so(tmp_path: Path) -> None:
    app = worker()
    async with life(tmp_path / "inbox", app, CALLS) as host:
        await host.call("hr.work", {"path": "a"}, wait=False)
        for answer in (Deny("no"), AllowWithChanges({"path": "c"})):
            out = await changed_and_called(host, app)
            with pytest.raises(PolicyError):
                await host.answer(out.ticket, answer)
        out = await host.call("hr.work", {"path": "a"}, wait=False)
        assert isinstance(out, CallAwaitingConsent)


async def test_an_edit_given_later_is_looked_at_again_and_loses_nothing(tmp_path: Path) -> None:
    policy = Policy("ask", [rule("deny", when=argument("/path").under("/etc"))])
    async with life(tmp_path / "inbox", worker(), policy) as host:
        out = await host.call("hr.work", {"path": "/a"}, wait=False)
        for wrong in ({"path": "/etc/passwd"}, "/b"):
            with pytest.raises(PolicyError):
                await host.answer(out.ticket, AllowWithChanges(wrong))
        assert text(await host.answer(out.ticket, AllowWithChanges({"path": "/b"}))) == "worked on /b"


async def test_a_server_that_is_down_does_not_block_other_questions(tmp_path: Path) -> None:
    path, sign = tmp_path / "inbox", tmp_path / "up"
    program = tmp_path / "hr_program.py"
    program.write_text(
        "import pathlib, sys\n"
        f"pathlib.Path({str(sign)!r}).exists() or sys.exit(3)\n"
        "from dovetail import Server\n"
        "app = Server('hr')\n"
        "@app.tool\n"
        "def work() -> str:\n    return 'worked'\n"
        "app.run()\n"
    )
    sign.touch()
    consent = FileConsent(path)
    async with Host(consent=consent) as host:
        host.add("hr", program)
        out = await host.call("hr.work", wait=False)
        sign.unlink()
        await host.servers[0].stop()
        with pytest.raises(MCPError):
            await host.answer(out.ticket, True)
        assert [item.ticket for item in await open_questions(host)] == [out.ticket]
        sign.touch()
        await host.restart("hr")
        assert text(await host.answer(out.ticket, True)) == "worked"
    consent.close()


async def test_a_policy_keeps_forms_out_of_the_inbox(tmp_path: Path) -> None:
    done: list[Any] = []
    keeping = Policy("allow", [rule("deny", kind="elicitation.*")])
    async with life(tmp_path / "inbox", Leave(done), keeping) as host:
        assert "declined" in text(await host.call("hr.approve", {"days": 3}, wait=False))
        assert await open_questions(host) == []
    assert done == []


def quiz() -> Server:
    app = Server("hr", secret_keys=SECRETS)

    @app.tool
    async def quiz(ctx: Context) -> str | InputRequired:
        if ctx.request_state is None:
            return InputRequired(
                {"pin": Elicit("Your pin?", str), "age": Elicit("Your age?", int)}, request_state="asked"
            )
        return str({name: one.get("content") for name, one in ctx.input_responses.items()})

    return app


async def test_several_forms_are_all_shown_and_answered_by_their_keys(tmp_path: Path) -> None:
    async with life(tmp_path / "inbox", quiz(), CALLS) as host:
        out = await host.call("hr.quiz", wait=False)
        (item,) = await open_questions(host)
        assert "Your pin?" in item.request.text
        assert "Your age?" in item.request.text
        for wrong in ({"value": "1234"}, {"pin": {"value": "1"}}, True, {"pin": "1", "age": {"value": 1}}):
            with pytest.raises(InputRequestError, match=r"pin, age|pin.*AllowWithChanges"):
                await host.answer(out.ticket, wrong)
        result = text(await host.answer(out.ticket, {"pin": {"value": "1234"}, "age": {"value": 5}}))
        assert result == "{'pin': {'value': '1234'}, 'age': {'value': 5}}"


async def test_a_yes_fills_in_no_form(tmp_path: Path) -> None:
    done: list[Any] = []
    async with life(tmp_path / "inbox", Leave(done), CALLS) as host:
        out = await host.call("hr.approve", {"days": 3}, wait=False)
        with pytest.raises(InputRequestError, match="AllowWithChanges"):
            await host.answer(out.ticket, True)
        assert isinstance(await host.answer(out.ticket, {"value": "x"}), CallAwaitingConsent)


async def test_the_keys_of_a_server_are_not_lines_of_the_host(tmp_path: Path) -> None:
    app = Server("hr", secret_keys=SECRETS)

    @app.tool
    async def quiz(ctx: Context) -> Any:
        forms = {"because": Elicit("Your pin?", str), "checked by dovetail": Elicit("Your age?", int)}
        return InputRequired(forms, request_state="asked")

    async with life(tmp_path / "inbox", app, CALLS) as host:
        await host.call("hr.quiz", wait=False)
        (item,) = await open_questions(host)
    lines = item.request.text.splitlines()
    assert "Your pin?" in item.request.text
    assert not [line for line in lines if "checked by dovetail" in line and not line.startswith("  │ ")]
