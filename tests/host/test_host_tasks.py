"""Test that a host and its agent wait for the tasks of their servers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Context, Policy, Server, rule, testing
from dovetail.agent import Agent, FinishedEvent
from dovetail.errors import PolicyError, RequestTimeout
from dovetail.extensions import TaskOptions
from dovetail.host import AllowWithChanges, Host, ServerSettings, ToolLimits, read_audit_log
from dovetail.testing import ScriptedModel, tool_call

STATELESS: Any = {"protocol_version": "2026-07-28"}


def create_server() -> Server:
    app = Server("far", tasks=TaskOptions(poll_interval=0.05))

    @app.tool(task="required")
    async def build(month: str, ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        return f"report of {month}"

    @app.tool(task="required")
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    @app.tool(task="required")
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


@asynccontextmanager
async def open_host(policy: Policy | None = None, **options: Any) -> AsyncGenerator[Host]:
    settings = options.pop("settings", None)
    async with (
        testing.serve(create_server(), transport="http") as url,
        Host(policy=policy or Policy("allow"), **options) as host,
    ):
        host.add("far", url, settings=settings, **STATELESS)
        yield host


def read(result: Any) -> str:
    return result.content[0].text


async def test_a_host_waits_for_a_task() -> None:
    messages: list[str | None] = []
    async with open_host() as host:
        result = await host.call(
            "far.build", {"month": "May"}, progress_handler=lambda done, total, message: messages.append(message)
        )
    assert read(result) == "report of May"


async def test_questions_of_a_task_go_to_the_user_of_the_host() -> None:
    asked: list[str] = []

    async def consent(request: Any) -> Any:
        asked.append(request.kind)
        return AllowWithChanges({"value": "Ada"})

    async with open_host(consent=consent) as host:
        assert read(await host.call("far.ask")) == "Ada"
    assert asked == ["elicitation.form"]


async def test_the_time_limit_of_a_policy_ends_a_task() -> None:
    async with open_host(settings=ServerSettings(limits=ToolLimits(timeout=0.3))) as host:
        with pytest.raises(RequestTimeout):
            await host.call("far.hang")


async def test_the_result_of_a_task_is_reviewed() -> None:
    async with open_host(Policy("allow", [rule("deny", kind="tool.result")])) as host:
        with pytest.raises(PolicyError):
            await host.call("far.build", {"month": "May"})


async def test_the_audit_log_has_the_outcome_of_the_task(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with open_host(audit_log=log) as host:
        await host.call("far.build", {"month": "May"})
    entries: list[Any] = [entry for entry in read_audit_log(log) if getattr(entry, "event", "") == "call"]
    assert [(entry.data["tool"], entry.data["outcome"]) for entry in entries] == [("build", "ok")]


async def test_an_agent_waits_for_a_task() -> None:
    model = ScriptedModel(tool_call("far__build", month="May"), "Done.")
    async with open_host() as host:
        events = [event async for event in Agent(host, model).run("Build the report.")]
    assert isinstance(events[-1], FinishedEvent)
    assert "report of May" in str(model.requests[-1].messages)
