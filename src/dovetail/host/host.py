"""Host: many servers, one user who stays in charge.

Everything that happens goes by the policy and, where that asks, by the user; what servers ask in turn goes the same
way. The whole can be served again as one server.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Self, TypedDict, Unpack

from dovetail.client.client import Client
from dovetail.client.deadlines import ProgressHandler
from dovetail.client.input_rounds import PendingRequest
from dovetail.host.audit_log import AuditLog, create_audit_listener
from dovetail.host.authorization import ConsentDeferred
from dovetail.host.config.config_files import check_level
from dovetail.host.config.secret_lookup import ConfigLevel, SecretResolver
from dovetail.host.config.server_entry import ConfigProblem, ServerConfig, apply_settings, describe_config
from dovetail.host.config.watcher import ConfigWatcher, check_files_exist
from dovetail.host.consent.consent import ConsentCallback, ConsentHandler, ConsentReply, as_consent_answer
from dovetail.host.consent.grants import GrantStore
from dovetail.host.consent.inbox import PendingConsent
from dovetail.host.consent.pins import PinStore
from dovetail.host.consent.postponed_calls import PendingCalls
from dovetail.host.events import HostEvent
from dovetail.host.execution import find_denial, review_result, run_request
from dovetail.host.gateway.gateway import Gateway, GatewayMode
from dovetail.host.input_handlers import add_handler_hints
from dovetail.host.managed_server import ManagedServer, ServerSettings
from dovetail.host.policy.policy import Policy, PolicyRequest
from dovetail.host.search_tools import CALL_TOOL, SEARCH_TOOL_BY_NAME, parse_inner_call, run_search_tool
from dovetail.host.servers import DEFAULT_READY_TIMEOUT_S, ManagedServers
from dovetail.protocol.language_model import Model
from dovetail.protocol.stats import HostStats
from dovetail.server.server import Server
from dovetail.server.server_options import HTTPServerOptions, Transport
from dovetail.wire.codec import to_plain
from dovetail.wire.completion import Completion
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.roots import Root

_SERVE_DRAIN_TIMEOUT_S: Final = 15.0  # for callers of a gateway to get their results when the host closes


class HostOptions(TypedDict, total=False):
    """The options of `Host`."""

    policy: Policy | str | Path | None
    consent: ConsentHandler | ConsentCallback | None
    state_dir: str | Path | None
    grants: GrantStore | str | Path | None
    pins: PinStore | str | Path | None
    audit_log: AuditLog | str | Path | None
    secrets: SecretResolver | None
    project: str | Path | None
    model: Model | None
    roots: Sequence[str | Path | Root]
    defaults: ServerSettings | None
    ready_timeout: float


class Host(ManagedServers):
    """Many servers for one user, who stays in charge.

    policy: rules, or a TOML file with rules. consent: asks the user. model: answers sampling requests.
    state_dir: a directory for what is remembered: grants.json, pins.json and audit.jsonl. grants, pins, audit_log:
    other files for these. Without a file, grants and pins are forgotten with the host, and there is no audit log.
    Pins are stored beside the grants by default. secrets: resolves references in configuration files, and masks their
    values in events and in the audit log. project: the directory that grants may be limited to. roots: the directories
    that servers may use. defaults: settings of every server that has none. ready_timeout: seconds that a list waits for
    servers that are not ready.
    """

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None = None,
        consent: ConsentHandler | ConsentCallback | None = None,
        state_dir: str | Path | None = None,
        grants: GrantStore | str | Path | None = None,
        pins: PinStore | str | Path | None = None,
        audit_log: AuditLog | str | Path | None = None,
        secrets: SecretResolver | None = None,
        project: str | Path | None = None,
        model: Model | None = None,
        roots: Sequence[str | Path | Root] = (),
        defaults: ServerSettings | None = None,
        ready_timeout: float = DEFAULT_READY_TIMEOUT_S,
    ) -> None:
        if state_dir is not None:
            grants = grants or Path(state_dir, "grants.json")
            pins = pins or Path(state_dir, "pins.json")
            audit_log = audit_log or Path(state_dir, "audit.jsonl")
        super().__init__(
            policy=policy,
            consent=consent,
            model=model,
            grants=grants,
            pins=pins,
            roots=roots,
            ready_timeout=ready_timeout,
            project=project,
            secrets=secrets,
            defaults=defaults,
        )
        self.postponing = PendingCalls(self)
        self._config_watcher: ConfigWatcher | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._serve_tasks: set[asyncio.Task[None]] = set()
        self._audit_log = AuditLog(audit_log) if isinstance(audit_log, str | Path) else audit_log
        if self._audit_log is not None:
            self.on("*", create_audit_listener(self._audit_log, self.secrets))

    # Configuration

    @classmethod
    def from_config(
        cls,
        *paths: str | Path,
        level: ConfigLevel = "user",
        watch: bool = False,
        **options: Unpack[HostOptions],
    ) -> Self:
        """Create a host with the servers of configuration files. Without paths, use all files of known hosts.

        level: "user", or "project" for files of a project, whose servers start only with the user's consent.
        watch: follow the files while the host is open. Entries that cannot be read are in `config_problems`. A path
        that does not exist raises FileNotFoundError. The other options are those of the host.
        """
        check_level(level)
        check_files_exist(paths)
        host = cls(**options)
        host._config_watcher = ConfigWatcher(paths, level, host.secrets, should_watch=watch)
        host._apply_config(*host._config_watcher.read())
        return host

    async def reload(self) -> None:
        """Read the configuration again. Servers whose entries changed are restarted, the others keep running."""
        if self._config_watcher is None:
            raise ValueError("reload() needs a host that was created with Host.from_config()")
        entries, problems = self._config_watcher.read()
        for name in self._config_watcher.forget_changed(entries):
            if name in self._servers_by_name:  # else it was removed already
                await self.remove(name)
        self._apply_config(entries, problems)

    def _apply_config(self, entries: Mapping[str, ServerConfig], problems: Sequence[ConfigProblem]) -> None:
        assert self._config_watcher is not None
        add_problems: list[ConfigProblem] = []
        for name, entry in entries.items():
            if name in self._config_watcher.applied_entries:
                continue
            try:
                self._add_server(
                    name,
                    self._config_watcher.create_target(entry),
                    apply_settings(entry, self._defaults),
                    identity=entry.identity,
                    source=str(entry.path),
                    from_project=entry.level == "project",
                    consent_details=describe_config(entry),
                    enabled=entry.enabled,
                )
                self._config_watcher.applied_entries[name] = entry
            except (ValueError, TypeError) as exc:
                add_problems.append(ConfigProblem(entry.source, entry.path, f"{entry.original_name}: {exc}"))
        self.config_problems = (*problems, *add_problems)
        for problem in self.config_problems:
            self.tell(HostEvent(kind="config.problem", server="", message=problem.message, details=problem))

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Start what is to be started at once; nothing is waited for."""
        self._open = True
        for server in self.servers:
            if server.settings.start == "eager" and server.state != "disabled":
                self._start_in_background(server)
        if self._config_watcher is not None and self._config_watcher.should_watch and self._watch_task is None:
            self._watch_task = asyncio.get_running_loop().create_task(self._config_watcher.watch_files(self.reload))

    def stats(self) -> HostStats:
        """Return what is open or running now. All counts are 0 when nothing is left."""
        members = [one for server in self.servers for one in self.members_of(server)]
        return HostStats(
            connected_servers=sum(member.client is not None for member in members),
            running_calls=sum(member.uses for member in members),
            open_questions=self.postponing.open_questions,
            gateways=len(self._serve_tasks),
        )

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers, at once and in bounded time; none is started again unless the host is."""
        self._open = False
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait([self._watch_task])
            self._watch_task = None
        serve_tasks = tuple(self._serve_tasks)
        for task in serve_tasks:
            task.cancel()
        if serve_tasks:
            await asyncio.wait(serve_tasks, timeout=_SERVE_DRAIN_TIMEOUT_S)
        caller_servers = [server for callers in self._caller_clients.values() for server in callers.servers]
        await asyncio.gather(*(server.stop() for server in (*self.servers, *caller_servers)))
        if self._audit_log is not None:
            self._audit_log.close()  # written to again, it is opened again

    # Using it

    async def call(
        self,
        name: str,
        /,
        arguments: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a tool by "server.tool", by what a model sees, or by its bare name if only one server has it.

        Arguments are given as a mapping, or by name where no option is called so. Returns its result; with `wait=False`
        and a `DurableConsent`, a `PendingCall` if somebody has to answer first.

        Raises:
            PolicyError: the policy, or the user, said no.
        """
        arguments = {**(arguments or {}), **kwargs}
        if name in SEARCH_TOOL_BY_NAME and SEARCH_TOOL_BY_NAME[name] != CALL_TOOL:
            return run_search_tool(await self._list_catalog("tool"), SEARCH_TOOL_BY_NAME[name], arguments or {})
        if name in SEARCH_TOOL_BY_NAME:
            name, arguments = parse_inner_call(arguments or {})
        managed_server, tool = await self.find(name)
        definition = await self.declared(managed_server, tool)
        request = self.question(managed_server, "tool.call", tool, to_plain(arguments or {}), definition)
        try:
            authorization = await self.desk.authorize(
                request, definition, {"description": definition.description or ""}, wait=wait
            )
        except ConsentDeferred as put_off:
            return await self.postponing.defer_call(put_off.ticket, request, definition)
        await self.check_same(managed_server, definition)
        return await self.perform(
            managed_server,
            definition,
            authorization.request,
            wait=wait,
            timeout=timeout,
            progress_handler=progress_handler,
            meta=meta,
            retry=retry,
        )

    async def perform(
        self,
        managed_server: ManagedServer,
        definition: Any,
        request: PolicyRequest,
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """Do what may be done, within the limits, with the arguments that were judged.

        `resume` goes on with a call that waited.
        """

        async def send_request(client: Client, max_seconds: float | None) -> Any:
            if resume is not None:
                return await resume(client)
            idle_timeout = timeout if max_seconds is None else min(timeout or max_seconds, max_seconds)
            return await client.call_tool(
                request.tool,
                dict(request.arguments or {}),
                timeout=idle_timeout,
                total_timeout=max_seconds,
                allow_input_required=not wait,
                **options,
            )

        with add_handler_hints():
            result = await run_request(self, managed_server, request, send_request)
        if isinstance(result, PendingRequest):
            return await self.postponing.handle_input_requests(managed_server, definition, request, result)
        return await review_result(self, managed_server, definition, result)

    async def read_resource(self, server: str, uri: str) -> ReadResourceResult:
        """Read a resource of a server."""
        managed_server = self._get_server(server)
        request = self.question(managed_server, "resource.read", uri, None)
        await self.desk.authorize(request)
        return await run_request(
            self, managed_server, request, lambda client, max_seconds: client.read_resource(uri, timeout=max_seconds)
        )

    async def get_prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt of a server, filled in."""
        managed_server = self._get_server(server)
        request = self.question(managed_server, "prompt.get", name, dict(arguments or {}))
        request = (await self.desk.authorize(request)).request
        judged_arguments: Mapping[str, Any] = request.arguments or {}
        return await run_request(
            self,
            managed_server,
            request,
            lambda client, max_seconds: client.get_prompt(name, judged_arguments, timeout=max_seconds),
        )

    async def complete(self, server: str, argument: str, value: str, **reference: Any) -> Completion:
        """Suggestions of a server, as `Client.complete` gives them."""
        managed_server = self._get_server(server)
        item_name = reference.get("prompt") or reference.get("template") or ""
        if (
            denial := find_denial(
                self, managed_server, "prompt.get" if "prompt" in reference else "resource.read", item_name
            )
        ) is not None:
            raise denial
        request = self.question(managed_server, "completion", item_name, None)
        await self.desk.authorize(request)
        return await run_request(
            self, managed_server, request, lambda client, _: client.complete(argument, value, **reference)
        )

    # Questions that wait

    async def list_pending(self) -> "AsyncGenerator[PendingConsent]":
        """The questions that wait for an answer, oldest first."""
        for item in await self.postponing.list_items():
            yield item

    async def answer(self, ticket: str, answer: ConsentReply) -> Any:
        """Answer a pending consent: True, False, Allow, Deny, Edit, or what was filled into a form.

        Returns the result of the call that waited for it, or None if another process waits for it.
        """
        return await self.postponing.answer(ticket, as_consent_answer(answer))

    # As a server itself

    def as_server(self, mode: GatewayMode = "merged", *, server: str | None = None, **options: Any) -> Server:
        """All servers as one: `mode` "merged", or "search" for three tools that find the others; or `only` one of them.

        Options are those of `Server`.
        """
        gateway = Gateway(
            self, lambda: nullcontext() if self.is_open else self, mode=mode, only_server=server, **options
        )
        self.on("server.added", lambda _: gateway.sync_mounts())
        self.on("server.removed", lambda _: gateway.sync_mounts())
        return gateway.server

    def asgi(self, mode: GatewayMode = "merged", *, name: str = "gateway", auth: Any = None, **options: Any) -> Any:
        """The gateway as an ASGI application: `/mcp`, `/search/mcp`, and `/servers/NAME/mcp` for each server.

        Options are those of `Server.asgi`.
        """
        return self.as_server(mode, name=name, auth=auth).asgi(**options)

    def run(
        self,
        transport: Transport = "stdio",
        mode: GatewayMode = "merged",
        *,
        name: str = "gateway",
        auth: Any = None,
        reload: bool = False,
        **options: Unpack[HTTPServerOptions],
    ) -> None:
        """Serve all servers as one until a signal comes or the client disconnects.

        Options are those of `Server.run`.
        """
        run: Callable[..., None] = self.as_server(mode, name=name, auth=auth).run  # checks options by transport
        run(transport, reload=reload, **options)

    async def serve(
        self,
        transport: Transport = "stdio",
        mode: GatewayMode = "merged",
        *,
        name: str = "gateway",
        auth: Any = None,
        **options: Unpack[HTTPServerOptions],
    ) -> None:
        """Serve all servers as one in the running event loop. Options are those of `Server.serve`.

        Returns when the host is closed. The host is opened for the time it serves, if it is not open yet.
        """
        async with nullcontext() if self.is_open else self:
            serve: Any = self.as_server(mode, name=name, auth=auth).serve  # checks options by transport
            task = asyncio.get_running_loop().create_task(serve(transport, **options))
            self._serve_tasks.add(task)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
                await asyncio.wait([task])
                self._serve_tasks.discard(task)
            if not task.cancelled():
                task.result()
