"""The public `Server` class, on which you register tools, resources and prompts.

`Server` checks the options of authors and passes them to its parts. `Registry` stores the items. `Visibility` decides
which callers may see and use the items. `Dispatcher` handles requests. `runners` serves the dispatcher over a
transport.
"""

import functools
import os
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from dovetail.error_context import check_type
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.middleware import Middleware
from dovetail.server import attachments
from dovetail.server.dispatch.dispatcher import Dispatcher
from dovetail.server.dispatch.lifespan import Lifespan, normalize_lifespan
from dovetail.server.items.item_options import (
    CacheHint,
    PromptOptions,
    ResourceOptions,
    SkillOptions,
    ToolOptions,
    check_icons,
)
from dovetail.server.items.page_cache import PageCache
from dovetail.server.items.registry import Registry
from dovetail.server.items.visibility import Visibility
from dovetail.server.parameters.signature import METHOD_HINT
from dovetail.server.server_options import (
    LISTS_RESTRICTED,
    ASGIOptions,
    HTTPServerOptions,
    ServerAuth,
    ServerOptions,
    Transport,
    check_option_names,
    check_run_options,
    is_authenticator,
)
from dovetail.wire.content import Icon
from dovetail.wire.elicitation import ElicitationCompleteParams
from dovetail.wire.lifecycle import Implementation, ServerCapabilities
from dovetail.wire.revisions import PROTOCOL_VERSIONS, REVISIONS

if TYPE_CHECKING:  # Few servers need these modules, so only type checkers import them.
    from pathlib import Path

    from dovetail.cluster import Cluster
    from dovetail.mounts.mountable import SupportsMount
    from dovetail.mounts.name_map import NameMap
    from dovetail.mounts.transforms import Transform
    from dovetail.openapi.document import OpenAPIOperation
    from dovetail.openapi.operation_call import HeaderFactory
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.protocol.interfaces.http_types import ASGIApp, AsyncHTTPClient, HTTPRequest, HTTPResponse
    from dovetail.protocol.interfaces.shared_state import SharedState
    from dovetail.protocol.interfaces.state_store import StateStore
    from dovetail.protocol.stats import ServerStats
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.dispatch.route_table import Routes
    from dovetail.server.items.access_rules import Predicate
    from dovetail.server.items.lint import LintReport
    from dovetail.server.large_results import LargeResultSettings
    from dovetail.server.runners import Runnable
    from dovetail.skills.skill_resources import SkillResources
    from dovetail.tasks.task_options import TaskOptions
    from dovetail.tasks.task_store import TaskStore
    from dovetail.tasks.tool_tasks import ToolTasks
    from dovetail.transports.duplex_server import DuplexServer
    from dovetail.transports.http_server.endpoint import Endpoint
    from dovetail.transports.http_server.http_request import OtherApps

F = TypeVar("F", bound=Callable[..., Any])


class Server:
    """An MCP server. Register tools, resources and prompts, then call `run`, or mount `asgi()` in a web application.

    Args:
        name: The name of the server, which clients see.
        version: The version of your server.
        title: A display name for users.
        description: One sentence about the purpose of the server, which hosts may show.
        website_url: The URL of a web page about the server.
        icons: Icons that hosts may show.
        instructions: Advice for models on how to use the server.
        lifespan: A function that returns an async context manager. Its value is `ctx.lifespan` while the server runs.
        auth: Checks the credentials of callers over HTTP. If None, the server does not authenticate callers.
        middleware: Functions that wrap every request. The first function is the outermost.
        limits: Limits on message sizes, durations and the number of calls. Defaults to `ServerLimits()`.
        secret_keys: Keys that encrypt the state of calls that wait for input, newest first. All workers of a server
            must have the same keys. Defaults to the environment variable DOVETAIL_SECRET_KEYS.
        page_size: The number of items on one page of a list. If None, all items are on one page.
        cache_hints: How long clients may cache lists. Pass one hint for all, or hints by method, such as "tools/list".
        schema_profile: Adapts the schemas of tools so that one model provider accepts them.
        wrap_results: Sends structured content that is not an object as `{"result": value}`. False sends the bare value,
            except to clients of handshake versions, which do not support it.
        large_results: Stores large results as resources and sends only their beginning. If None, results are always
            sent in full.
        protocol_versions: The protocol versions to serve. Defaults to all.
        capabilities: Additional capabilities to declare. The server declares the capabilities of its items
            automatically.
        extensions: Extensions of the protocol that the server serves and declares.
        tasks: Options for calls that run as tasks. You only need it to change the defaults of `TaskOptions`.
        cluster: Where several workers of this server keep the state that they share: "local" for the workers of one
            machine, the URL of a Redis server, or a `Cluster(...)`. Defaults to the environment variable
            DOVETAIL_CLUSTER, if the server is served over HTTP.
        state: The store of `ctx.user_state` and `ctx.session_state`: the path of a SQLite file, or a `StateStore`. By
            default, the state is kept in the cluster. Without a cluster, it is kept in memory.
        recording: A file to which every message is written.
        search: Lists three tools that find, describe and call all other tools. Use it for a server with hundreds of
            tools, whose definitions would fill the context of a model.
        resource_tools: Adds the tools `list_resources` and `read_resource`, for hosts that only know tools.
        prompt_tools: Adds the tools `list_prompts` and `get_prompt`, for hosts that only know tools.
        debug: Logs lint warnings when tools are registered, and sends the text of exceptions to clients.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] = (),
        instructions: str | None = None,
        lifespan: Lifespan | None = None,
        auth: "ServerAuth | None" = None,
        middleware: Sequence[Middleware] = (),
        limits: ServerLimits | None = None,
        secret_keys: Sequence[str | bytes] = (),
        page_size: int | None = None,
        cache_hints: CacheHint | Mapping[str, CacheHint] | None = None,
        schema_profile: "SchemaProfile | None" = None,
        wrap_results: bool = True,
        large_results: "LargeResultSettings | None" = None,
        protocol_versions: Sequence[str] = PROTOCOL_VERSIONS,
        capabilities: ServerCapabilities | None = None,
        extensions: "Sequence[Extension]" = (),
        tasks: "TaskOptions | None" = None,
        cluster: "Cluster | SharedState | str | None" = None,
        state: "StateStore | str | Path | None" = None,
        recording: "str | Path | None" = None,
        search: bool = False,
        resource_tools: bool = False,
        prompt_tools: bool = False,
        debug: bool = False,
    ) -> None:
        texts = {"name": name, "version": version, "title": title, "description": description}
        for option, value in (texts | {"website_url": website_url, "instructions": instructions}).items():
            check_type(f"{option}=", value, str, "a string")
        check_type("debug=", debug, bool, "True or False")
        check_type("wrap_results=", wrap_results, bool, "True or False")
        check_icons(icons)
        check_type("limits=", limits, ServerLimits, "a ServerLimits(...)")
        check_type("page_size=", page_size, int, "an integer")
        check_type("recording=", recording, (str, os.PathLike), "the path of a file")
        if callable(middleware):
            raise TypeError(f"middleware= must be a list of functions, not {middleware!r}")
        if isinstance(secret_keys, str | bytes):
            raise TypeError("secret_keys must be a list, newest first. Write secret_keys=[...]")
        cluster = attachments.read_cluster_option(cluster)
        secret_keys = attachments.find_secret_keys(secret_keys, cluster)
        limits = limits or ServerLimits()
        page_cache = PageCache(page_size, limits.max_cursor_bytes)
        self._registry = Registry(
            name,
            page_cache,
            capabilities=capabilities,
            large_results=large_results,
            schema_profile=schema_profile,
            wrap_results=wrap_results,
            lint=debug,
            show_locked=_lists_restricted(auth),
        )
        self._page_size = page_size
        self._routes: Routes | None = None  # None until a route is added.
        self._skills: SkillResources | None = None  # None until a skill is added.
        self._tasks: ToolTasks | None = None  # None until a tool with `task=` is added.
        # True if tasks need a file, because the server outlives its clients. None means that it is not decided yet.
        self._keeps_tasks: bool | None = None
        self._secret_keys = secret_keys
        self._redis_cluster = attachments.find_redis_cluster(cluster)  # None if the cluster is not on Redis.
        self._auth = _check_auth(auth)  # Only HTTP requests are authenticated.
        self._endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()  # the endpoints that `asgi` created
        # An optional function that creates ASGI applications for other paths.
        self._create_other_apps: Callable[[ASGIOptions], OtherApps] | None = None
        self._dispatcher = Dispatcher(
            self._registry,
            Visibility(self._registry, page_cache, cache_hints),
            implementation=Implementation(
                name=name,
                version=version,
                title=title,
                description=description,
                website_url=website_url,
                icons=list(icons) or None,
            ),
            instructions=instructions,
            protocol_versions=_check_protocol_versions(protocol_versions),
            limits=limits,
            lifespan=normalize_lifespan(self, lifespan),
            secret_keys=secret_keys,
            state=state,
            find_recorder=attachments.create_message_tap(recording, lambda: self.name),
            debug=debug,
        )
        if cluster is not None:
            attachments.join_cluster(self._dispatcher, cluster, secret_keys)
        for function in middleware:
            self.middleware(function)
        if extensions:
            from dovetail.protocol.interfaces.extension import check_extensions

            for extension in check_extensions(extensions):
                self._dispatcher.add_extension(extension)
        if tasks is not None:
            self._open_tasks(tasks)
        if search:
            attachments.add_search(self._dispatcher)
        if resource_tools or prompt_tools:
            from dovetail.server.items.item_tools import add_prompt_tools, add_resource_tools

            if resource_tools:
                add_resource_tools(self.add_tool)
            if prompt_tools:
                add_prompt_tools(self.add_tool)

    if not TYPE_CHECKING:  # Type checkers must report unknown attributes.

        def __getattr__(self, name: str) -> Any:
            from dovetail.peer_names import SERVER_HINTS, create_attribute_error

            raise create_attribute_error(self, name, SERVER_HINTS)

    @property
    def name(self) -> str:
        """Return the name of the server."""
        return self._dispatcher.implementation.name

    @property
    def version(self) -> str:
        """Return the version of the server."""
        return self._dispatcher.implementation.version

    @property
    def instructions(self) -> str | None:
        """The instructions for models. You can assign new instructions at any time."""
        return self._dispatcher.instructions

    @instructions.setter
    def instructions(self, instructions: str | None) -> None:
        self._dispatcher.instructions = instructions

    @overload
    def tool(self, function: F, /, **options: Unpack[ToolOptions]) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool: `@app.tool`, `@app.tool()` or `@app.tool("name", title=...)`.

        Options: see `ToolOptions`.

        Args:
            function: The function, or a name for the tool. Defaults to the name of the function.
        """
        return _make_decorator(function, options, self.add_tool)

    def add_tool(self, function: Callable[..., object], **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool. This method takes the same options as `tool`."""
        self._dispatcher.report_local_change()
        if not options.get("task"):
            self._registry.add_tool(function, **options)
            return
        from dovetail.tasks.task_options import read_task_option

        config = read_task_option(options.get("task"))
        if config.after is not None and config.after >= self._dispatcher.limits.call_timeout:
            raise ValueError(
                f"TaskConfig(after={config.after:g}) must be less than ServerLimits.call_timeout, which is "
                f"{self._dispatcher.limits.call_timeout:g} seconds"
            )
        tasks = self._open_tasks()
        tool = self._registry.add_tool(function, tasks.create_support(config), **options)
        if config.after is not None:
            attachments.switch_to_task(self._dispatcher, tasks, tool.name)

    def _open_tasks(self, options: "TaskOptions | None" = None) -> "ToolTasks":
        """Return the tasks of this server. The first call adds the extension for tasks."""
        if self._tasks is None:
            from dovetail.tasks.task_options import TaskOptions
            from dovetail.tasks.tool_tasks import ToolTasks

            check_type("tasks=", options, TaskOptions, "a TaskOptions(...)")
            dispatcher = self._dispatcher
            self._tasks = ToolTasks(
                self.name,
                self._registry,
                options or TaskOptions(),
                limits=dispatcher.limits,
                secret_keys=self._secret_keys,
                keeps_tasks=lambda: self._keeps_tasks,
                check_access=functools.partial(dispatcher.visibility.check_scopes, "tool"),
                handle_in_background=dispatcher.nested_calls.handle_in_background,
                create_shared_store=self._create_shared_task_store,
            )
            dispatcher.add_extension(self._tasks.extension)
        return self._tasks

    def _create_shared_task_store(self) -> "TaskStore | None":
        cluster = self._redis_cluster
        if cluster is None:
            return None
        from dovetail.tasks.redis_task_store import RedisTaskStore

        return RedisTaskStore(
            cluster.url, secret_keys=self._secret_keys, prefix=cluster.prefix, timeout=cluster.timeout
        )

    def remove_tool(self, name: str) -> None:
        """Remove a tool."""
        self._dispatcher.report_local_change()
        self._registry.remove("tool", name)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function as a resource with a URI, or as a template such as `city://{name}/profile`.

        Options: see `ResourceOptions`.
        """

        # `uri` is callable if the decorator is used without parentheses.
        if callable(uri):
            raise TypeError('@app.resource requires a URI. Write @app.resource("city://list")')

        def register(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return register

    def add_resource(self, function: Callable[..., object], uri: str, **options: Unpack[ResourceOptions]) -> None:
        """Register a function as a resource or a template. This method takes the same options as `resource`."""
        self._dispatcher.report_local_change()
        self._registry.add_resource(function, uri, **options)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template."""
        self._dispatcher.report_local_change()
        self._registry.remove("resource template" if "{" in uri else "resource", uri)

    @overload
    def prompt(self, function: F, /, **options: Unpack[PromptOptions]) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt: `@app.prompt`, `@app.prompt()` or `@app.prompt("name", title=...)`.

        Options: see `PromptOptions`.

        Args:
            function: The function, or a name for the prompt. Defaults to the name of the function.
        """
        return _make_decorator(function, options, self.add_prompt)

    def add_prompt(self, function: Callable[..., object], **options: Unpack[PromptOptions]) -> None:
        """Register a function as a prompt. This method takes the same options as `prompt`."""
        self._dispatcher.report_local_change()
        self._registry.add_prompt(function, **options)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        self._dispatcher.report_local_change()
        self._registry.remove("prompt", name)

    @overload
    def skill(self, function: F, /, **options: Unpack[SkillOptions]) -> F: ...
    @overload
    def skill(self, called: str | None = None, /, **options: Unpack[SkillOptions]) -> Callable[[F], F]: ...
    def skill(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a skill: `@app.skill`, `@app.skill()` or `@app.skill("name", description=...)`.

        The function returns the text of SKILL.md without front matter, or a dict of all files by path. It may be async.
        It runs whenever a client lists or reads the skill. Options: see `SkillOptions`.

        Args:
            function: The function, or a name for the skill. Defaults to the name of the function, with hyphens.
        """
        return _make_decorator(function, options, self.add_skill)

    def add_skill(self, function: Callable[..., object], **options: Unpack[SkillOptions]) -> None:
        """Register a function as a skill. This method takes the same options as `skill`."""
        from dovetail.skills.generated_skill import GeneratedSkill

        check_option_names("skill()", options, SkillOptions.__annotations__)
        item_options: dict[str, Any] = dict(options)
        scopes, visible_to = item_options.pop("scopes", ()), item_options.pop("visible_to", None)
        generated = GeneratedSkill(function, **item_options)
        self._open_skills().add_generated(generated, scopes, visible_to)

    def add_skills(
        self,
        folder: "str | os.PathLike[str]",
        *,
        scopes: Collection[str] = (),
        visible_to: "Predicate | None" = None,
    ) -> None:
        """Serve the skills in a folder. Each folder in it that contains a file SKILL.md is a skill.

        The server notices changes of the files. Skills need the extra `dovetail-mcp[skills]`.

        Args:
            folder: The folder with the skills, or the folder of one skill. A relative path depends on the working
                directory, which hosts choose. Use `Path(__file__).parent / "skills"` instead.
            scopes: The scopes that a caller needs for these skills, as in `restrict`.
            visible_to: A function that decides which callers may see and use these skills, as in `restrict`.

        Raises:
            ValueError: the folder does not exist or has no skills, or a skill cannot be served. The message names the
                file and the solution.
        """
        from dovetail.skills.skill_folder import SkillFolder

        check_type("folder", folder, (str, os.PathLike), "the path of a folder")
        skill_folder = SkillFolder(folder)
        self._open_skills().add_folder(skill_folder, scopes, visible_to)

    def _open_skills(self) -> "SkillResources":
        """Return the skills of this server. The first call adds the extension for skills."""
        if self._skills is None:
            from dovetail.skills.skill_resources import SkillResources

            dispatcher = self._dispatcher
            self._skills = SkillResources(
                self._registry, dispatcher.visibility, dispatcher.limits, self._page_size, dispatcher.thread_pool
            )
            dispatcher.add_extension(self._skills.extension)
        return self._skills

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt or a template.

        Register the prompt or template before this function.

        Args:
            ref: The name of the prompt, or the URI of the template.
            argument: The name of the argument.
        """
        ref = self._registry.check_completable(ref, argument)

        def register(function: F) -> F:
            self._registry.add_completer(ref, argument, function)
            return function

        return register

    def include(self, source: object, *, prefix: str = "") -> None:
        """Register all functions of a module or object that have the decorator `tool`, `resource` or `prompt`.

        If no function is marked, every public function becomes a tool.

        Args:
            prefix: A prefix for the names of tools and prompts.
        """
        from dovetail.server.items.decorators import find_registrations

        add_by_kind = {"tool": self.add_tool, "prompt": self.add_prompt}
        for name, function, registration in find_registrations(source):
            if registration.kind == "resource":
                self.add_resource(function, registration.uri, **cast("ResourceOptions", registration.options))
            else:
                named_options: Any = registration.options | {
                    "name": prefix + (registration.options.get("name") or name)
                }
                add_by_kind[registration.kind](function, **named_options)

    def enable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Enable tools and prompts by name, resources by URI, or all items with a tag.

        For mounted items, use the names that they have on this server. An unknown tag has no effect.

        Args:
            tags: Enables all items that have one of these tags.
        """
        self._dispatcher.report_local_change()
        self._registry.set_enabled(names, tags, enabled=True)

    def disable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Hide items by name, URI or tag until `enable` is called.

        Args:
            tags: Disables all items that have one of these tags.
        """
        self._dispatcher.report_local_change()
        self._registry.set_enabled(names, tags, enabled=False)

    def restrict(
        self,
        *names: str,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible_to: "Predicate | None" = None,
    ) -> None:
        """Limit which callers may see and use items. Select the items by name, URI or tag.

        The rule also applies to items that you add or mount later. If several rules match an item, all rules apply.

        Args:
            tags: Restricts all items that have one of these tags.
            scopes: The scopes that a caller needs. All of them are required.
            visible_to: A function that takes the principal and returns True if this caller may see and use the items.
        """
        self._registry.restrict(names, tags=tags, scopes=scopes, visible_to=visible_to)

    def middleware(self, function: Middleware) -> Middleware:
        """Add middleware: an `async def middleware(exchange, call_next)` that wraps every request.

        The function returns `await call_next(exchange)`, or another result. In protocol versions up to 2025-11, some
        requests are answered without middleware: `initialize`, `ping`, log levels and subscriptions. If you pass an
        object with a method `on_change(method, uri)`, the server calls this method for every change notification.
        """
        self._dispatcher.handler_table.add_middleware(function)
        return function

    def on_notification(self, method: str) -> Callable[[F], F]:
        """Call a function for each notification with this method. Only clients up to protocol version 2025-11 send
        notifications.

        The function takes the parameters of the notification as a dict, and the context: `(params, ctx)`. It may be
        async. Middleware does not wrap this function.

        Args:
            method: The method, such as "notifications/roots/list_changed".
        """

        # If the decorator is used without a method, `method` is the function.
        check_type("a method", method, str, "a string")

        def register(function: F) -> F:
            self._dispatcher.add_notification_handler(method, function)
            return function

        return register

    def route(
        self,
        path: str,
        *,
        methods: Sequence[str] = ("GET",),
        scopes: Collection[str] = (),
        allow_anonymous: bool = False,
    ) -> Callable[[F], F]:
        """Serve a function at a URL path beside the MCP endpoint, for example for a webhook. Only HTTP has routes.

        The function takes a `RouteRequest`, or nothing, and may be async. It returns text, bytes, a value that is sent
        as JSON, a `RouteResponse`, or an ASGI response such as those of Starlette. Callers must authenticate as for the
        MCP endpoint. The checks of `Host` and `Origin`, and the limits and the timeout of calls apply. Middleware does
        not wrap routes.

        Args:
            path: The path, such as "/webhook" or "/orders/{id}". A placeholder is one part of the path.
            methods: The HTTP methods. A route with "GET" also answers "HEAD".
            scopes: The scopes that a caller needs. All of them are required.
            allow_anonymous: True serves the route without authentication, even if the server has `auth=`. The function
                must then check the request itself, for example its signature.
        """
        check_type("path", path, str, "a URL path such as '/webhook'")  # The decorator may be used without a path.

        def register(function: F) -> F:
            self._open_routes().add(path, function, methods, scopes, allow_anonymous=allow_anonymous)
            return function

        return register

    def _open_routes(self) -> "Routes":
        """Return the routes of this server. The first call adds them."""
        if self._routes is None:
            from dovetail.server.dispatch.route_table import Routes

            self._routes = Routes(self._dispatcher.handle, self._dispatcher.thread_pool)
            self._dispatcher.handler_table.add_part(self._routes)
        return self._routes

    def mount(
        self,
        server: "Server | SupportsMount",
        prefix: "str | NameMap" = "",
        *,
        transforms: "Mapping[str, Transform] | None" = None,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible_to: "Predicate | None" = None,
    ) -> Callable[[], None]:
        """Mount another server with all its current and later items. Return a function that unmounts the server.

        Args:
            server: A `Server` in this process, or a `Client` of any server.
            prefix: A prefix for the mounted items. Names become `prefix_name`, URIs become `prefix+uri`, and paths of
                routes become `/prefix/path`.
            transforms: Changes to items, by their name or URI on the mounted server.
            tags: If set, only items with one of these tags are mounted.
            scopes: The scopes that a caller needs for the mounted items, as in `restrict`.
            visible_to: A function that decides which callers may see and use the mounted items, as in `restrict`.
        """
        from dovetail.mounts.name_map import NameMap

        if not isinstance(server, Server) and not hasattr(server, "__mountable__"):
            raise TypeError(f"mount() requires a Server or a Client, not {server!r}")
        access_rule = None
        if scopes or visible_to is not None:
            from dovetail.server.items.access_rules import build_access_rule

            access_rule = build_access_rule(scopes, visible_to)
        name_map = prefix if isinstance(prefix, NameMap) else NameMap(prefix, transforms or {}, tags)
        target = server._dispatcher if isinstance(server, Server) else server
        return attachments.mount(self._dispatcher, target, name_map, access_rule)

    @classmethod
    def from_openapi(
        cls,
        document: Mapping[str, object] | str | bytes,
        client: "Callable[[HTTPRequest], Awaitable[HTTPResponse]] | AsyncHTTPClient | None" = None,
        *,
        name: str | None = None,
        base_url: str | None = None,
        headers: "Mapping[str, str] | HeaderFactory | None" = None,
        include: "str | Callable[[OpenAPIOperation], bool] | None" = None,
        tool_names: Mapping[str, str] | None = None,
        validate_output: bool = True,
        max_response_bytes: int = 4 * 1024 * 1024,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Create a server with a tool for each operation of a web service.

        Args:
            document: An OpenAPI 3 document, as a dict or as JSON.
            client: An httpx client, or an async function that takes an `HTTPRequest` and returns an `HTTPResponse`.
            name: The name of the server. Defaults to the title of the document.
            base_url: URL of the service. Defaults to the client's `base_url`, then to the URL in the document.
            headers: Headers for every request. Pass a mapping, or a function that takes the Context and returns a
                mapping.
            include: Selects operations with a regular expression for strings like "GET /path", or with a function that
                takes an operation and returns a bool.
            tool_names: New names for tools. The keys are the default names of the operations.
            validate_output: Pass False for services that do not follow their document. Tools then have no output
                schema.
            max_response_bytes: The maximum size in bytes of a response from the service.
        """
        from dovetail.openapi.importer import add_operations
        from dovetail.openapi.senders import create_sender, get_base_url

        info: Any = document.get("info") if isinstance(document, Mapping) else None
        title = (info or {}).get("title")
        server = cls(name or title or "service", **options)
        add_operations(
            server,
            document,
            create_sender(client, max_response_bytes),
            service_url=base_url,
            client_base_url=get_base_url(client),
            headers=headers or {},
            include=include,
            tool_names=tool_names,
            validate_output=validate_output,
            max_response_bytes=max_response_bytes,
        )
        return server

    @classmethod
    def from_asgi(
        cls,
        app: "ASGIApp",
        document: Mapping[str, object] | str | bytes | None = None,
        *,
        name: str | None = None,
        base_url: str = "http://localhost",
        headers: "Mapping[str, str] | HeaderFactory | None" = None,
        include: "str | Callable[[OpenAPIOperation], bool] | None" = None,
        tool_names: Mapping[str, str] | None = None,
        validate_output: bool = True,
        max_response_bytes: int = 4 * 1024 * 1024,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Create a server with a tool for each operation of an ASGI application in this process.

        For the other options, see `from_openapi`. The server runs the lifespan of the application unless you pass
        `lifespan`.

        Args:
            document: An OpenAPI 3 document. Defaults to the document of the application.
            base_url: The URL that the application sees in requests.
        """
        from dovetail.openapi.senders import create_app_sender, get_openapi_document
        from dovetail.transports.http1.asgi_lifespan import run_lifespan

        state: dict[str, object] = {}  # the values that the lifespan of the application adds
        return cls.from_openapi(
            document or get_openapi_document(app),
            create_app_sender(app, max_response_bytes, state),
            name=name,
            base_url=base_url,
            headers=headers,
            include=include,
            tool_names=tool_names,
            validate_output=validate_output,
            max_response_bytes=max_response_bytes,
            **{"lifespan": lambda: run_lifespan(app, state), **options},
        )

    # The following methods send change notifications. Any task or thread may call them.

    def notify_tools_changed(self) -> None:
        """Notify clients that the list of tools has changed. This happens automatically when you add or remove
        tools.
        """
        self._registry.notify_list_changed("tools")

    def notify_resources_changed(self) -> None:
        """Notify clients that the list of resources or templates has changed.

        This happens automatically when you add or remove resources.
        """
        self._registry.notify_list_changed("resources")

    def notify_prompts_changed(self) -> None:
        """Notify clients that the list of prompts has changed. This happens automatically when you add or remove
        prompts.
        """
        self._registry.notify_list_changed("prompts")

    def notify_resource_updated(self, uri: str) -> None:
        """Notify subscribed clients that the contents of a resource have changed."""
        self._registry.notify_resource_updated(uri)

    def notify_elicitation_complete(self, elicitation_id: str, session_id: str) -> None:
        """Notify a client that the user has completed a URL elicitation.

        You can call this after the tool call has ended. Only protocol version 2025-11 and the draft have this
        notification. Clients of other versions get nothing. Call this method in the process that the client is
        connected to, or in any worker of the cluster. Any thread may call it.

        Args:
            elicitation_id: The ID that you passed to `elicit_url` or `URLElicitationRequired`.
            session_id: The `session_id` of the context in which you asked.
        """
        check_type("elicitation_id", elicitation_id, str, "a string")
        check_type("session_id", session_id, str, "a string")
        params = ElicitationCompleteParams(elicitation_id=elicitation_id)
        self._registry.subscriptions.send_to_session(session_id, "notifications/elicitation/complete", params)

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", *, reload: bool = False) -> None: ...
    @overload
    def run(
        self, transport: Literal["http"], *, reload: bool = False, **options: Unpack[HTTPServerOptions]
    ) -> None: ...
    @overload
    def run(
        self, transport: Literal["unix"], *, path: "str | Path", allow_anonymous: bool = False, reload: bool = False
    ) -> None: ...
    @overload
    def run(
        self,
        transport: Literal["tcp"],
        *,
        host: str = "127.0.0.1",
        port: int,
        allow_anonymous: bool = False,
        reload: bool = False,
    ) -> None: ...
    def run(self, transport: Transport = "stdio", *, reload: bool = False, **options: Any) -> None:
        """Serve until a signal stops the process. With "stdio", the server also stops when the client disconnects.

        "http" takes the options of `HTTPServerOptions`, "unix" takes `path`, "tcp" takes `host` and `port`.

        Args:
            transport: "stdio", "http", "unix" or "tcp".
            reload: Restarts the program when one of its files changes. Use it only in development.
        """
        from dovetail.server import runners

        check_run_options("run", transport, options)
        self._keeps_tasks = transport != "stdio"
        runners.run(self._make_runnable(), transport, options, reload=reload)

    @overload
    async def serve(self, transport: Literal["stdio"] = "stdio") -> None: ...
    @overload
    async def serve(self, transport: Literal["http"], **options: Unpack[HTTPServerOptions]) -> None: ...
    @overload
    async def serve(self, transport: Literal["unix"], *, path: "str | Path", allow_anonymous: bool = False) -> None: ...
    @overload
    async def serve(
        self, transport: Literal["tcp"], *, host: str = "127.0.0.1", port: int, allow_anonymous: bool = False
    ) -> None: ...
    async def serve(self, transport: Transport = "stdio", **options: Any) -> None:
        """Serve in the running event loop. This method takes the options of `run`, except `workers` and `reload`.

        This method returns when the process receives a signal. With "stdio", it also returns when the client
        disconnects. Cancel the task to stop serving.

        Args:
            transport: "stdio", "http", "unix" or "tcp".
        """
        from dovetail.server import runners

        check_run_options("serve", transport, options)
        self._keeps_tasks = transport != "stdio"
        await runners.serve(self._make_runnable(), transport, options)

    def asgi(self, **options: Unpack[ASGIOptions]) -> "ASGIApp":
        """Return the server as an ASGI application. Mount it in another application, or run it with any ASGI server."""
        from dovetail.server.asgi_app import create_asgi_app, create_endpoint

        check_option_names("asgi()", options, ASGIOptions.__annotations__)
        self._keeps_tasks = True
        dispatcher = self._dispatcher
        self._join_default_cluster()
        endpoint = create_endpoint(
            dispatcher,
            self._auth,
            options,
            list_scopes=dispatcher.list_used_scopes,
            on_start=self.start,
            on_stop=self.stop,
            other_apps=None if self._create_other_apps is None else self._create_other_apps(options),
            find_route=dispatcher.find_route,
        )
        if self._routes is not None:
            endpoint.check_routes(self._routes.list_paths())
        self._endpoints.add(endpoint)
        return create_asgi_app(dispatcher, endpoint, options.get("fallback"))

    def _join_default_cluster(self) -> None:
        default_cluster = attachments.find_default_cluster() if self._dispatcher.cluster is None else None
        if default_cluster is not None:
            attachments.join_cluster(self._dispatcher, default_cluster, self._secret_keys)

    def open_connection(
        self,
        send: Callable[[bytes], None],
        *,
        drain: "Callable[[], Coroutine[object, None, None]] | None" = None,
        principal: str | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> "DuplexServer":
        """Open a connection for a custom transport.

        Pass each message from the client to `receive` of the returned object, and call its `close` at the end.

        Args:
            send: A function that sends a message to the client.
            drain: An async function that waits until the transport can accept more data.
            principal: The identity of the client, if your transport knows it.
            on_shutdown: A function that is called when the client asks to end the connection.
        """
        from dovetail.transports.duplex_server import DuplexServer

        return DuplexServer(self._dispatcher, send, drain=drain, principal=principal, on_shutdown=on_shutdown)

    async def start(self, user: object = None) -> None:
        """Start the lifespan in the running event loop. `run`, `serve` and `asgi` do this automatically.

        Each event loop has a separate lifespan, which stays open until `stop` is called or the event loop ends.

        Args:
            user: Any object that identifies the caller. The lifespan closes after the last `stop(user)`.
        """
        if user is None and self._keeps_tasks is None:
            self._keeps_tasks = True
        await self._dispatcher.lifecycle.start(user)

    async def stop(self, user: object = None) -> None:
        """Stop the server in this event loop.

        The server ends all subscriptions, waits a limited time for running calls, and ends the lifespan.

        Args:
            user: The object that was passed to `start`. If set, the server stops only if it has no other user and no
                running call.
        """
        await self._dispatcher.lifecycle.stop(user)

    def _make_runnable(self) -> "Runnable":
        from dovetail.server.runners import Runnable

        return Runnable(self, self._dispatcher, self._auth)

    def lint(self, *profiles: str) -> "list[LintReport]":
        """Return the problems that hosts and models may have with each tool, and its estimated number of tokens.

        The default profiles check the rules of OpenAI, Gemini and Anthropic. Pass names of profiles to check other
        rules.
        """
        return self._registry.lint(*profiles)

    def stats(self) -> "ServerStats":
        """Return the number of open calls, sessions, streams and other resources. Any thread may call this method."""
        return self._dispatcher.stats(endpoint.stats() for endpoint in tuple(self._endpoints))


# Other packages of dovetail use these functions. They are not public.


def set_other_apps(server: Server, create_other_apps: "Callable[[ASGIOptions], OtherApps]") -> None:
    """Serve additional ASGI applications at other paths of a server.

    `create_other_apps` gets the options of `Server.asgi`.
    """
    server._create_other_apps = create_other_apps  # pyright: ignore[reportPrivateUsage]


def describe_as(server: Server, implementation: Implementation | None, instructions: str | None) -> None:
    """Set the name, title, version and instructions of a server to those of another server."""
    if implementation is not None:
        server._dispatcher.implementation = implementation  # pyright: ignore[reportPrivateUsage]
    server.instructions = instructions


def get_dispatcher(server: Server) -> Dispatcher:
    return server._dispatcher  # pyright: ignore[reportPrivateUsage]


def get_task_settings(server: Server) -> "tuple[TaskStore | str | Path | None, Sequence[str | bytes]] | None":
    """Return the task store and the secret keys of a server. Return None if the server has no tasks.

    The store is None if the server uses the default file.
    """
    tasks, secret_keys = server._tasks, server._secret_keys  # pyright: ignore[reportPrivateUsage]
    if tasks is None:
        return None
    return tasks.options.store or server._create_shared_task_store(), secret_keys  # pyright: ignore[reportPrivateUsage]


def prepare_task_worker(server: Server, drain_timeout: float) -> "tuple[Runnable, TaskStore] | None":
    """Let this process run the tasks of a server without a transport. Return None if the server has no tasks.

    Args:
        drain_timeout: Seconds to wait for running tasks when the process stops.
    """
    tasks = server._tasks  # pyright: ignore[reportPrivateUsage]
    if tasks is None:
        return None
    server._keeps_tasks = True  # pyright: ignore[reportPrivateUsage]
    server._join_default_cluster()  # pyright: ignore[reportPrivateUsage]
    tasks.become_worker(drain_timeout)
    return server._make_runnable(), tasks.store  # pyright: ignore[reportPrivateUsage]


def get_auth(server: Server) -> Any:
    return server._auth  # pyright: ignore[reportPrivateUsage]


def _make_decorator(function: Any, options: dict[str, Any], add: Callable[..., None]) -> Any:
    if callable(function):
        add(function, **options)
        return function
    _check_registrable(function)
    check_type("a name", function, str, "a string")

    def register(decorated: F) -> F:
        _check_registrable(decorated)
        add(decorated, **({"name": function} if function is not None else {}) | options)
        return decorated

    return register


def _check_registrable(value: Any) -> None:
    if isinstance(value, classmethod | property):
        raise TypeError(f"cannot register a {type(value).__name__} inside its class{METHOD_HINT}")


def _lists_restricted(auth: Any) -> bool:
    """Return whether lists show items for which the caller lacks scopes."""
    if LISTS_RESTRICTED.get():
        return True
    if auth is None:
        return False
    from dovetail.oauth.guard.guard import Guard, get_credential_checker

    return isinstance(auth, Guard) and get_credential_checker(auth).list_restricted


def _check_auth(auth: Any) -> Any:
    if auth is not None and not is_authenticator(auth):
        from dovetail.oauth.guard.guard import get_credential_checker

        get_credential_checker(auth)
    return auth


def _check_protocol_versions(revisions: Sequence[str]) -> tuple[str, ...]:
    unknown = [revision for revision in revisions if revision not in REVISIONS]
    if unknown or not revisions:
        raise ValueError(
            f"protocol_versions must be some of {', '.join(PROTOCOL_VERSIONS)}, not {', '.join(unknown) or 'empty'}"
        )
    return tuple(revision for revision in REVISIONS if revision in revisions)
