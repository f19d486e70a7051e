"""A host connects one user to many servers.

The policy authorizes each call once, and asks the user if a rule requires consent. Requests from
servers are authorized in the same way. A gateway serves the host as one server.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack, overload

from dovetail.client.client import Client, ManagedClientOptions
from dovetail.client.deadlines import ProgressHandler
from dovetail.client.input_rounds import RequestAwaitingInput
from dovetail.client.targets import Target
from dovetail.errors import ConsentDeferred, MCPError
from dovetail.host.audit_log import AuditLog, attach_audit_log
from dovetail.host.authorization import Authorization, RequestAuthorizer, ToolRecord
from dovetail.host.caller_clients import CredentialsProvider
from dovetail.host.catalog import Catalog, copy_catalog
from dovetail.host.catalog_item import CatalogEntry, copy_entries
from dovetail.host.config.config_files import check_level
from dovetail.host.config.secret_lookup import ConfigLevel, SecretResolver
from dovetail.host.config.server_entry import ConfigProblem, ServerConfig, apply_settings, describe_config
from dovetail.host.config.watcher import ConfigWatcher, check_files_exist
from dovetail.host.consent.consent import (
    ConsentAnswer,
    ConsentFunction,
    ConsentHandler,
    ShortAnswer,
    as_consent_answer,
    as_consent_handler,
)
from dovetail.host.consent.grants import GrantStore
from dovetail.host.consent.inbox import CallAwaitingConsent, PendingConsent
from dovetail.host.consent.pins import PinStore
from dovetail.host.consent.postponed_calls import PendingCalls
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.execution import CallExecutor, ServerUse, find_completion_denial
from dovetail.host.gateway.gateway import Gateway, GatewayMode
from dovetail.host.host_catalog import HostCatalog
from dovetail.host.input_handlers import add_handler_hints
from dovetail.host.managed_server import ManagedServer
from dovetail.host.parts import HostParts
from dovetail.host.policy.policy import Policy, as_policy
from dovetail.host.search_tools import (
    SEARCH_TOOL_BY_NAME,
    create_search_catalog,
    run_search_tool,
)
from dovetail.host.server_settings import ServerSettings, compute_server_id
from dovetail.host.servers import ManagedServers
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.interfaces.http_types import ASGIApp
from dovetail.protocol.interfaces.language_model import Model
from dovetail.protocol.stats import HostStats
from dovetail.search.tool_search import CALL_TOOL, parse_inner_call
from dovetail.server.server import Server
from dovetail.server.server_options import ASGIOptions, HTTPServerOptions, ServerAuth, ServerOptions, Transport
from dovetail.wire.base import JSONValue, replace
from dovetail.wire.codec import to_plain
from dovetail.wire.completion import Completion
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.roots import Root
from dovetail.wire.tools import CallToolResult

if TYPE_CHECKING:
    from dovetail.host.host_skills import HostSkill, SkillCatalog, SkillContent

# The seconds that a closing host waits for the calls of gateway callers.
_SERVE_DRAIN_TIMEOUT_S: Final = 15.0


class HostOptions(TypedDict, total=False):
    """The options of `Host`."""

    policy: Policy | str | Path | None
    consent: ConsentHandler | ConsentFunction | None
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
    skills: str | Path | None


class Host:
    """Connects one user to many servers. The user decides what the servers may do.

    Args:
        policy: The rules, as a `Policy` or the path of a TOML file. By default, the host asks about everything.
        consent: A function that asks the user about a `ConsentRequest`, or a consent handler. None denies every
            request.
        state_dir: A directory for grants.json, pins.json and audit.jsonl.
        grants: A file for grants, or a `GrantStore`. Without a file, grants are lost when the host ends.
        pins: A file for pins, or a `PinStore`. Defaults to pins.json beside the file of the grants.
        audit_log: A file for the audit log, or an `AuditLog`. Without a file, the host writes no audit log.
        secrets: The resolver for references in configuration files. It masks their values in events and in the
            audit log.
        project: The project directory. Grants with the scope "project" apply only in this directory.
        model: The model that answers sampling requests of servers. Without a model, the host does not declare sampling.
        roots: The directories that servers may use.
        defaults: The settings for servers that are added without settings.
        ready_timeout: The time in seconds that list methods wait for servers that are starting.
        skills: A folder with skills of the user. They need no consent, and skills of servers never replace them.
    """

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None = None,
        consent: ConsentHandler | ConsentFunction | None = None,
        state_dir: str | Path | None = None,
        grants: GrantStore | str | Path | None = None,
        pins: PinStore | str | Path | None = None,
        audit_log: AuditLog | str | Path | None = None,
        secrets: SecretResolver | None = None,
        project: str | Path | None = None,
        model: Model | None = None,
        roots: Sequence[str | Path | Root] = (),
        defaults: ServerSettings | None = None,
        ready_timeout: float = 5.0,
        skills: str | Path | None = None,
    ) -> None:
        if state_dir is not None:
            grants = grants or Path(state_dir, "grants.json")
            pins = pins or Path(state_dir, "pins.json")
            audit_log = audit_log or Path(state_dir, "audit.jsonl")
        self._defaults = defaults or ServerSettings()
        self._events = EventEmitter()
        self._secrets = secrets or SecretResolver()  # The resolver masks secrets in all output.
        grant_store = grants if isinstance(grants, GrantStore) else GrantStore(grants)
        self._authorizer = RequestAuthorizer(
            as_policy(policy),
            as_consent_handler(consent),
            grant_store,
            _create_pin_store(pins, grant_store),
            self._events,
            "" if project is None else str(project),
        )
        self._servers = ManagedServers(self._authorizer, self._events, self._secrets, model=model, roots=roots)
        self._catalog = HostCatalog(self._servers, self._authorizer, ready_timeout)
        self._executor = CallExecutor(self._authorizer, self._events)
        self._parts = HostParts(
            events=self._events,
            secrets=self._secrets,
            authorizer=self._authorizer,
            servers=self._servers,
            catalog=self._catalog,
            executor=self._executor,
        )
        self._pending_calls = PendingCalls(self._authorizer, self._catalog, self._perform, self.call)
        self._skill_folder = skills
        self._skill_catalog: SkillCatalog | None = None  # None until skills are used
        if skills is not None:
            self._get_skill_catalog()  # A folder with an invalid skill raises an error here.
        self._config_watcher: ConfigWatcher | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._serve_tasks: set[asyncio.Task[None]] = set()
        self._audit_log = AuditLog(audit_log) if isinstance(audit_log, str | Path) else audit_log
        if self._audit_log is not None:
            attach_audit_log(self._audit_log, self._events, self._secrets)

    @classmethod
    def from_config(
        cls,
        *paths: str | Path,
        level: ConfigLevel = "user",
        watch: bool = False,
        **options: Unpack[HostOptions],
    ) -> Self:
        """Create a host with the servers from configuration files. Without paths, use the files of all supported hosts.

        Args:
            level: "user" or "project". Servers from project files start only with the user's consent.
            watch: True reloads changed files while the host is open.
        """
        check_level(level)
        check_files_exist(paths)
        host = cls(**options)
        host._config_watcher = ConfigWatcher(paths, level, host._secrets, should_watch=watch)
        host._apply_config(*host._config_watcher.read())
        return host

    async def reload(self) -> None:
        """Read the configuration files again. Restart servers whose entries changed, and keep the others running."""
        if self._config_watcher is None:
            raise ValueError("reload() works only for a host that was created with Host.from_config()")
        entries, problems = self._config_watcher.read()
        for name in self._config_watcher.forget_changed(entries):
            if self._servers.find(name) is not None:  # The server may have been removed in the meantime.
                await self._servers.remove(name)
        self._apply_config(entries, problems)

    def _apply_config(self, entries: Mapping[str, ServerConfig], problems: Sequence[ConfigProblem]) -> None:
        assert self._config_watcher is not None
        add_problems: list[ConfigProblem] = []
        for name, entry in entries.items():
            if name in self._config_watcher.applied_entries:
                continue
            try:
                self._servers.add(
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
        self._servers.config_problems = (*problems, *add_problems)
        for problem in self.config_problems:
            self._events.emit(HostEvent(kind="config.problem", server="", message=problem.message, details=problem))

    @property
    def config_problems(self) -> tuple[ConfigProblem, ...]:
        """Return the problems in the configuration files."""
        return self._servers.config_problems

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Start the servers that have `start="eager"`, without waiting for them. Other servers start on first use."""
        self._servers.is_open = True
        for server in self._servers.list():
            if server.settings.start == "eager" and server.state != "disabled":
                self._servers.start_in_background(server)
        if self._config_watcher is not None and self._config_watcher.should_watch and self._watch_task is None:
            self._watch_task = asyncio.get_running_loop().create_task(self._config_watcher.watch_files(self.reload))

    @property
    def is_open(self) -> bool:
        """Return whether the host is open."""
        return self._servers.is_open

    def stats(self) -> HostStats:
        """Return the numbers of running servers, calls and other open resources."""
        servers = [
            server for supervisor in self._servers.list() for server in self._servers.list_for_callers(supervisor)
        ]
        return HostStats(
            connected_servers=sum(server.client is not None for server in servers),
            running_calls=sum(server.use_count for server in servers),
            open_questions=self._pending_calls.open_questions,
            gateways=len(self._serve_tasks),
        )

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers at the same time, within a time limit. No server starts until the host is opened again."""
        self._servers.is_open = False
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait([self._watch_task])
            self._watch_task = None
        serve_tasks = tuple(self._serve_tasks)
        for task in serve_tasks:
            task.cancel()
        if serve_tasks:
            await asyncio.wait(serve_tasks, timeout=_SERVE_DRAIN_TIMEOUT_S)
        await self._servers.stop_all()
        if self._audit_log is not None:
            self._audit_log.close()  # If the host writes another entry, the audit log opens again.

    @property
    def policy(self) -> Policy:
        """Return the policy of the host."""
        return self._authorizer.policy

    def add(
        self,
        name: str,
        target: Target,
        *,
        settings: ServerSettings | None = None,
        trusted: bool | None = None,
        enabled: bool = True,
        credentials: CredentialsProvider | None = None,
        **client_options: Unpack[ManagedClientOptions],
    ) -> ManagedServer:
        """Add a server. This method takes the same targets and options as `Client`.

        Args:
            settings: The settings of the server. Defaults to the `defaults` of the host.
            trusted: A shortcut for `settings.trusted`.
            enabled: False adds the server without starting it.
            credentials: A function that returns the client options for a gateway caller, such as headers. If it returns
                None, the caller cannot use the server.
        """
        for option in client_options:
            if option in ServerSettings.__struct_fields__:
                raise TypeError(f"add() has no option {option}=. Pass settings=ServerSettings({option}=...)")
        settings = settings or self._defaults
        return self._servers.add(
            name,
            target,
            settings if trusted is None else replace(settings, trusted=trusted),
            identity=compute_server_id(target),
            enabled=enabled,
            credentials=credentials,
            options=client_options,
        )

    async def remove(self, name: str) -> None:
        """Stop a server and remove it."""
        await self._servers.remove(name)

    async def restart(self, name: str) -> None:
        """Stop a server and start it again immediately."""
        await self._servers.get(name).restart()

    @property
    def servers(self) -> tuple[ManagedServer, ...]:
        """Return all servers with their states, sorted by name."""
        return self._servers.list_views()

    @asynccontextmanager
    async def client(self, name: str) -> AsyncGenerator[Client]:
        """Yield the client of one server. Use the client for methods that the host does not have.

        The policy does not check the requests of this client.
        """
        async with self._servers.get(name).using() as client:
            yield client

    def on(self, event: str, callback: Callable[[HostEvent], object]) -> Callable[[], None]:
        """Call a function for each event whose kind matches a name or glob. The returned function removes the
        callback.
        """
        return self._events.on(event, callback)

    async def list_tools(self) -> tuple[CatalogEntry, ...]:
        """Return the tools of all servers. Names are unique, and the order is stable."""
        return copy_entries((await self._catalog.fetch("tool")).tools)

    async def list_resources(self) -> tuple[CatalogEntry, ...]:
        """Return the resources of all servers."""
        return copy_entries((await self._catalog.fetch("resource")).resources)

    async def list_resource_templates(self) -> tuple[CatalogEntry, ...]:
        """Return the resource templates of all servers."""
        return copy_entries((await self._catalog.fetch("resource template")).resource_templates)

    async def list_prompts(self) -> tuple[CatalogEntry, ...]:
        """Return the prompts of all servers."""
        return copy_entries((await self._catalog.fetch("prompt")).prompts)

    async def list_skills(self) -> "tuple[HostSkill, ...]":
        """Return the skills of the user and of all servers. No file of a skill is fetched."""
        return await self._get_skill_catalog().list()

    async def load_skill(self, server: str, uri: str, path: str = "SKILL.md") -> "SkillContent":
        """Fetch a file of a skill, verify it, and return it. The user must allow the whole skill first.

        Args:
            server: The name of the server, or "" for a skill of the user.
            uri: The URI of the SKILL.md.
            path: The path of the file in the skill.

        Raises:
            PolicyError: the policy or the user denied the skill.
            NotFound: the skill or the file does not exist.
            SkillMismatch: the file differs from its size, its digest or its front matter.
        """
        skill = await self._get_skill_catalog().get(server, uri)
        return await skill.read(path)

    def _get_skill_catalog(self) -> "SkillCatalog":
        from dovetail.host.host_skills import SkillCatalog

        if self._skill_catalog is None:
            self._skill_catalog = SkillCatalog(self._parts, self._skill_folder)
        return self._skill_catalog

    async def catalog(self, max_tokens: int | None = None) -> Catalog:
        """Return a snapshot of the tools, resources and prompts of all servers.

        Args:
            max_tokens: If the tool definitions take more tokens than this, three search tools replace them.
        """
        catalog = await self._catalog.fetch("tool", "resource", "resource template", "prompt")
        if max_tokens is not None and catalog.tokens > max_tokens:
            catalog = create_search_catalog(catalog)
        return copy_catalog(catalog)

    @overload
    async def call(
        self,
        name: str,
        /,
        arguments: Mapping[str, object] | None = None,
        *,
        wait: Literal[True] = True,
        timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        **kwargs: object,
    ) -> CallToolResult: ...
    @overload
    async def call(
        self,
        name: str,
        /,
        arguments: Mapping[str, object] | None = None,
        *,
        wait: bool,
        timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        **kwargs: object,
    ) -> CallToolResult | CallAwaitingConsent: ...
    async def call(
        self,
        name: str,
        /,
        arguments: Mapping[str, object] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        **kwargs: object,
    ) -> CallToolResult | CallAwaitingConsent:
        """Call a tool by its full name "server.tool", its model name, or a bare name that only one server has.

        Args:
            arguments: The arguments of the tool. Other keyword arguments are added to them.
            wait: False returns a `CallAwaitingConsent` if the user must answer first. It requires a `FileConsent`.
            timeout: Seconds without progress after which the call fails. Defaults to `Timeouts.call`.
            progress_handler: A function that is called with `(progress, total, message)`.
            meta: The `_meta` of the request.
            retry: True may send the call twice. False never sends the call again. None repeats only calls of tools
                that are declared read-only or idempotent.

        Raises:
            PolicyError: the policy or the user denied the call.
        """
        arguments = {**(arguments or {}), **kwargs}
        if name in SEARCH_TOOL_BY_NAME and SEARCH_TOOL_BY_NAME[name] != CALL_TOOL:
            return run_search_tool(await self._catalog.fetch("tool"), SEARCH_TOOL_BY_NAME[name], arguments)
        if name in SEARCH_TOOL_BY_NAME:
            name, arguments = parse_inner_call(arguments)
        supervisor, tool = await self._catalog.find_tool(name)
        record = await self._catalog.get_record(supervisor, tool)
        plain_arguments: dict[str, Any] = to_plain(arguments)
        try:
            authorization = await self._authorizer.authorize_call(record, plain_arguments, wait=wait)
        except ConsentDeferred as deferred:
            return await self._pending_calls.defer_call(deferred.ticket, record, plain_arguments)
        if not authorization.is_immediate:
            await self._catalog.check_unchanged(supervisor, record)
        return await self._perform(
            supervisor,
            authorization,
            wait=wait,
            timeout=timeout,
            progress_handler=progress_handler,
            meta=meta,
            retry=retry,
        )

    async def _call_for_agent(
        self, name: str, arguments: Mapping[str, Any], wait: bool, find_permission: Callable[[ToolRecord], str]
    ) -> CallToolResult | CallAwaitingConsent:
        supervisor, tool = await self._catalog.find_tool(name)
        record = await self._catalog.get_record(supervisor, tool)
        plain_arguments: dict[str, Any] = to_plain(arguments)
        try:
            authorization = await self._authorizer.authorize_call(
                record, plain_arguments, wait=wait, permission=find_permission(record)
            )
        except ConsentDeferred as deferred:
            return await self._pending_calls.defer_call(deferred.ticket, record, plain_arguments)
        if not authorization.is_immediate:
            await self._catalog.check_unchanged(supervisor, record)
        return await self._perform(supervisor, authorization, wait=wait)

    async def _perform(
        self,
        supervisor: ServerSupervisor,
        authorization: Authorization,
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        request, max_seconds = authorization.request, authorization.limits.timeout
        try:
            async with ServerUse(self._executor, supervisor, authorization) as use:
                if resume is not None:
                    use.result = await resume(use.client)
                else:
                    use.result = await use.client.call_tool(
                        request.tool,
                        dict(request.arguments or {}),
                        timeout=timeout if max_seconds is None else min(timeout or max_seconds, max_seconds),
                        total_timeout=max_seconds,
                        allow_input_required=not wait,
                        **options,
                    )
        except MCPError as exc:
            add_handler_hints(exc)
            raise
        if isinstance(use.result, RequestAwaitingInput):
            return await self._pending_calls.handle_input_requests(supervisor, authorization, use.result)
        return await self._executor.review(authorization, use.result)

    async def read_resource(self, server: str, uri: str) -> ReadResourceResult:
        """Read a resource of a server."""
        supervisor = self._servers.get(server)
        authorization = await self._authorize(supervisor, "resource.read", uri)
        async with ServerUse(self._executor, supervisor, authorization) as use:
            use.result = await use.client.read_resource(uri, timeout=authorization.limits.timeout)
        return use.result

    async def get_prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Render a server's prompt with these arguments, and return its messages.

        Args:
            arguments: The arguments of the prompt.
        """
        supervisor = self._servers.get(server)
        authorization = await self._authorize(supervisor, "prompt.get", name, dict(arguments or {}))
        judged_arguments: Mapping[str, Any] = authorization.request.arguments or {}
        async with ServerUse(self._executor, supervisor, authorization) as use:
            use.result = await use.client.get_prompt(name, judged_arguments, timeout=authorization.limits.timeout)
        return use.result

    async def complete(
        self,
        server: str,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggestions for an argument, like `Client.complete`.

        Args:
            prompt: The name of the prompt that has the argument. Pass this or `template`.
            template: The URI template that has the argument. Pass this or `prompt`.
            context: Values of other arguments that the user has already chosen.
        """
        supervisor = self._servers.get(server)
        if (prompt is None) == (template is None):
            raise ValueError("pass either prompt= or template=")
        # If `context` has another value for this argument, it is replaced by `value`.
        context = {name: known_value for name, known_value in (context or {}).items() if name != argument}
        item_name, known_arguments = prompt or template or "", {**context, argument: value}
        denial = find_completion_denial(self._authorizer, supervisor, prompt, item_name, known_arguments)
        if denial is not None:
            raise denial
        authorization = await self._authorize(supervisor, "completion", item_name, known_arguments)
        async with ServerUse(self._executor, supervisor, authorization) as use:
            use.result = await use.client.complete(argument, value, prompt=prompt, template=template, context=context)
        return use.result

    async def _authorize(
        self, supervisor: ServerSupervisor, kind: str, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Authorization:
        request = self._authorizer.create_request(supervisor, kind, name, arguments)
        return await self._authorizer.authorize(request, limits=self._authorizer.get_limits(supervisor, name))

    async def list_pending(self) -> "AsyncGenerator[PendingConsent]":
        """Yield the open consent requests, oldest first."""
        for item in await self._pending_calls.list_items():
            yield item

    async def answer(
        self, ticket: str, answer: ConsentAnswer | ShortAnswer
    ) -> CallToolResult | CallAwaitingConsent | None:
        """Answer an open consent request with True, False, Allow, Deny, AllowWithChanges, or the values of a form.

        Returns the result of the call that waited for the answer. Returns None if the call waits in another process,
        or if the question was about a skill. An answer about a skill applies when the skill is read again.
        """
        return await self._pending_calls.answer(ticket, as_consent_answer(answer))

    def as_server(
        self,
        mode: GatewayMode = "merged",
        *,
        server: str | None = None,
        name: str = "gateway",
        **options: Unpack[ServerOptions],
    ) -> Server:
        """Return a gateway: one server with the items of all servers. This method takes the same options as `Server`.

        Args:
            mode: "merged" offers all tools, "search" offers three tools that find and call the others.
            server: The name of the only server to offer. None offers all servers.
            name: The name of the gateway.
        """
        return Gateway(
            self._parts,
            lambda: nullcontext() if self.is_open else self,
            mode=mode,
            only_server=server,
            name=name,
            **options,
        ).server

    def asgi(
        self,
        mode: GatewayMode = "merged",
        *,
        name: str = "gateway",
        auth: "ServerAuth | None" = None,
        **options: Unpack[ASGIOptions],
    ) -> ASGIApp:
        """Return the gateway as an ASGI application. This method takes the same options as `Server.asgi`.

        The paths are `/mcp`, `/search/mcp`, and `/servers/NAME/mcp` for each server.

        Args:
            mode: "merged" offers all tools, "search" offers three tools that find and call the others.
            name: The name of the gateway.
            auth: How to check the credentials of callers, as in `Server(auth=...)`.
        """
        return self.as_server(mode, name=name, auth=auth).asgi(**options)

    def run(
        self,
        transport: Transport = "stdio",
        mode: GatewayMode = "merged",
        *,
        name: str = "gateway",
        auth: "ServerAuth | None" = None,
        reload: bool = False,
        **options: Unpack[HTTPServerOptions],
    ) -> None:
        """Serve all servers as one server, until a signal arrives or the client disconnects.

        Options are those of `Server.run`.

        Args:
            transport: "stdio", "http", "unix" or "tcp".
            mode: "merged" offers all tools, "search" offers three tools that find and call the others.
            name: The name of the gateway.
            auth: How to check the credentials of callers over HTTP, as in `Server(auth=...)`.
            reload: True restarts the program when one of its files changes. Use it only in development.
        """
        # `Server.run` checks these options.
        run: Callable[..., None] = self.as_server(mode, name=name, auth=auth).run
        run(transport, reload=reload, **options)

    async def serve(
        self,
        transport: Transport = "stdio",
        mode: GatewayMode = "merged",
        *,
        name: str = "gateway",
        auth: "ServerAuth | None" = None,
        **options: Unpack[HTTPServerOptions],
    ) -> None:
        """Serve all servers as one server in the running event loop. This method takes the options of `Server.serve`.

        Returns when the host is closed. If the host is not open, this method opens it and closes it at the end.

        Args:
            transport: "stdio", "http", "unix" or "tcp".
            mode: "merged" offers all tools, "search" offers three tools that find and call the others.
            name: The name of the gateway.
            auth: How to check the credentials of callers over HTTP, as in `Server(auth=...)`.
        """
        async with nullcontext() if self.is_open else self:
            # `Server.serve` checks these options.
            serve: Any = self.as_server(mode, name=name, auth=auth).serve
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


def get_parts(host: Host) -> HostParts:
    """Return the internal objects of a host, which other packages of dovetail use."""
    return host._parts  # pyright: ignore[reportPrivateUsage]


async def call_for_agent(
    host: Host, name: str, arguments: Mapping[str, Any], *, wait: bool, find_permission: Callable[[ToolRecord], str]
) -> CallToolResult | CallAwaitingConsent:
    """Call a tool for an agent. `find_permission` returns why the user need not be asked, or "" to ask the user."""
    return await host._call_for_agent(name, arguments, wait, find_permission)  # pyright: ignore[reportPrivateUsage]


def _create_pin_store(pins: PinStore | str | Path | None, grants: GrantStore) -> PinStore:
    if pins is None and grants.path is not None:
        return PinStore(grants.path.with_name("pins.json"))
    return pins if isinstance(pins, PinStore) else PinStore(pins)
