"""Server: register tools, resources and prompts, then run it. The public class of this package.

It checks what authors pass and hands it to its parts: `Registry` holds the items, `Visibility` decides who sees and
uses them, `Dispatcher` turns requests into results, and `runners` serves the dispatcher over a transport.
"""

import os
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.middleware import Middleware
from dovetail.server.dispatcher import Dispatcher
from dovetail.server.item_options import (
    CacheHint,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_icons,
    check_type,
)
from dovetail.server.lifespan import Lifespan, normalize_lifespan
from dovetail.server.page_cache import PageCache
from dovetail.server.parameters.signature import METHOD_HINT
from dovetail.server.registry import Registry
from dovetail.server.server_options import (
    ASGIOptions,
    HTTPServerOptions,
    ServerOptions,
    Transport,
    check_option_names,
    check_run_options,
    is_authenticator,
)
from dovetail.server.visibility import Visibility
from dovetail.wire.content import Icon
from dovetail.wire.lifecycle import Implementation, ServerCapabilities
from dovetail.wire.revisions import PROTOCOL_VERSIONS, REVISIONS

if TYPE_CHECKING:  # what few servers use is loaded by those who do
    from pathlib import Path

    from dovetail.oauth.guard.guard import Guard
    from dovetail.oauth.guard.verifiers import TokenVerifier
    from dovetail.protocol.http_types import ASGIApp, AsyncHTTPClient, HTTPRequest, HTTPResponse
    from dovetail.protocol.mountable import SupportsMount
    from dovetail.protocol.principal import Authenticator
    from dovetail.protocol.stats import ServerStats
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.access_rules import Predicate
    from dovetail.server.large_results import LargeResults
    from dovetail.server.lint import LintReport
    from dovetail.server.mounts.name_map import NameMap
    from dovetail.server.mounts.transforms import Transform
    from dovetail.server.openapi.document import OpenAPIOperation
    from dovetail.server.openapi.operation_call import HeaderFactory
    from dovetail.server.runners import Runnable
    from dovetail.transports.duplex_server import DuplexServer
    from dovetail.transports.http_server.endpoint import Endpoint

F = TypeVar("F", bound=Callable[..., Any])


class Server:
    """A server: register tools, resources and prompts on it, then `run` it or mount its `asgi` application."""

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
        auth: "Guard | TokenVerifier | Sequence[TokenVerifier] | Authenticator | None" = None,
        middleware: Sequence[Middleware] = (),
        limits: ServerLimits | None = None,
        secret_keys: Sequence[str | bytes] = (),
        page_size: int | None = None,
        cache_hints: CacheHint | Mapping[str, CacheHint] | None = None,
        schema_profile: "SchemaProfile | None" = None,
        large_results: "LargeResults | None" = None,
        protocol_versions: Sequence[str] = PROTOCOL_VERSIONS,
        capabilities: ServerCapabilities | None = None,
        recording: "str | Path | None" = None,
        debug: bool = False,
    ) -> None:
        texts = {"name": name, "version": version, "title": title, "description": description}
        for option, value in (texts | {"website_url": website_url, "instructions": instructions}).items():
            check_type(f"{option}=", value, str, "a text")
        check_type("debug=", debug, bool, "True or False")
        check_icons(icons)
        check_type("limits=", limits, ServerLimits, "a ServerLimits(...)")
        check_type("page_size=", page_size, int, "a number")
        check_type("recording=", recording, (str, os.PathLike), "the path of a file")
        if callable(middleware):
            raise TypeError(f"middleware= must be a list of functions, not {middleware!r}")
        if isinstance(secret_keys, str | bytes):
            raise TypeError("secret_keys must be a list, newest first: secret_keys=[...]")
        limits = limits or ServerLimits()
        page_cache = PageCache(page_size, limits.max_cursor_bytes)
        self._registry = Registry(
            name,
            page_cache,
            capabilities=capabilities,
            large_results=large_results,
            schema_profile=schema_profile,
            lint=debug,
            show_locked=_lists_restricted(auth),
        )
        self._auth = _check_auth(auth)  # used over HTTP only
        self._endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()  # those that `asgi` made
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
            recording=recording,
            debug=debug,
        )
        for function in middleware:
            self.middleware(function)

    @property
    def name(self) -> str:
        """The name of the server."""
        return self._dispatcher.implementation.name

    @property
    def version(self) -> str:
        """The version of the server."""
        return self._dispatcher.implementation.version

    @property
    def instructions(self) -> str | None:
        """Instructions for models on how to use the server."""
        return self._dispatcher.instructions

    @instructions.setter
    def instructions(self, instructions: str | None) -> None:
        self._dispatcher.instructions = instructions

    # Items

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a tool: `@app.tool`, `@app.tool()` or `@app.tool("name", title=...)`.

        Options: see `ToolOptions`.
        """
        return _make_decorator(function, options, self.add_tool)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a tool; options as for the decorator."""
        self._registry.add_tool(function, **options)

    def remove_tool(self, name: str) -> None:
        """Stop offering a tool."""
        self._registry.remove("tool", name)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function's value under a URI, or under every URI of a template such as `city://{name}/profile`.

        Options: see `ResourceOptions`.
        """

        if callable(uri):  # `@app.resource`, without its URI
            raise TypeError('a resource needs its URI: @app.resource("city://list")')

        def register(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return register

    def add_resource(self, function: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]) -> None:
        """Register a resource or a template; options as for the decorator."""
        self._registry.add_resource(function, uri, **options)

    def remove_resource(self, uri: str) -> None:
        """Stop offering a resource or a template."""
        self._registry.remove("resource template" if "{" in uri else "resource", uri)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a prompt: `@app.prompt`, `@app.prompt()` or `@app.prompt("name", title=...)`.

        Options: see `PromptOptions`.
        """
        return _make_decorator(function, options, self.add_prompt)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Register a prompt; options as for the decorator."""
        self._registry.add_prompt(function, **options)

    def remove_prompt(self, name: str) -> None:
        """Stop offering a prompt."""
        self._registry.remove("prompt", name)

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Suggest values for an argument of a prompt (by name) or of a template (by its URI), registered before."""
        self._registry.check_completable(ref, argument)

        def register(function: F) -> F:
            self._registry.add_completer(ref, argument, function)
            return function

        return register

    def include(self, source: object, *, prefix: str = "") -> None:
        """Offer the functions of a module or object that are marked with `tool`, `resource` or `prompt`.

        If none is marked, every public function becomes a tool. A prefix goes before the names of tools and prompts.
        """
        from dovetail.server.decorators import find_registrations

        add_by_kind = {"tool": self.add_tool, "prompt": self.add_prompt}
        for name, function, registration in find_registrations(source):
            if registration.kind == "resource":
                self.add_resource(function, registration.uri, **cast("ResourceOptions", registration.options))
            else:
                named_options: Any = registration.options | {
                    "name": prefix + (registration.options.get("name") or name)
                }
                add_by_kind[registration.kind](function, **named_options)

    # Who may use what

    def enable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Offer again what was disabled: tools and prompts by name, resources by URI, or all with one of the tags.

        What is mounted here is meant too, by the name it has here; a tag that nothing has changes nothing.
        """
        self._registry.set_enabled(names, tags, enabled=True)

    def disable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Stop offering, without forgetting, what `enable` would offer again."""
        self._registry.set_enabled(names, tags, enabled=False)

    def restrict(
        self,
        *names: str,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible_to: "Predicate | None" = None,
    ) -> None:
        """Limit who may see and use items, by name, URI or tag. Items registered or mounted later are included.

        A caller needs all `scopes`. `visible_to` is a function that takes the principal and returns a bool. If several
        rules match an item, all of them apply.
        """
        self._registry.restrict(names, tags=tags, scopes=scopes, visible_to=visible_to)

    # Composition

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every request in an async function: `async def middleware(exchange, call_next)`.

        The function returns `await call_next(exchange)`, or a result of its own. Requests that a handshake session
        answers itself do not pass through middleware: initialize, ping, log levels and subscriptions. If the function
        is an object with a method `on_change(method, uri)`, the server calls it for every change notice.
        """
        self._dispatcher.add_middleware(function)
        return function

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
        """Offer everything another server offers, now and later. Returns a function that removes the mount.

        server: a `Server` in this process, or a `Client` of any server.
        prefix: goes before names as `prefix_name` and before URIs as `prefix+uri`.
        transforms: changes to items, by the name or URI they have on the mounted server.
        tags: if given, only items with one of these tags are offered.
        scopes, visible_to: who may see and use the mounted items, as in `restrict`.
        """
        from dovetail.server.mounts.local_server import LocalServer
        from dovetail.server.mounts.name_map import NameMap

        if not isinstance(server, Server) and not hasattr(server, "__mountable__"):
            raise TypeError(f"mount() takes a Server or a Client, not {server!r}")
        access_rule = None
        if scopes or visible_to is not None:
            from dovetail.server.access_rules import build_access_rule

            access_rule = build_access_rule(scopes, visible_to)
        name_map = prefix if isinstance(prefix, NameMap) else NameMap(prefix, transforms or {}, tags)
        target = LocalServer(server._dispatcher) if isinstance(server, Server) else server.__mountable__()
        return self._dispatcher.mount(target, name_map, access_rule)

    @classmethod
    def from_openapi(
        cls,
        document: Mapping[str, Any] | str | bytes,
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
        """Create a server whose tools are the operations of a web service.

        document: an OpenAPI 3 document, as a dict or as JSON.
        client: an httpx client, or an async function that takes an `HTTPRequest` and returns an `HTTPResponse`.
        base_url: URL of the service. Defaults to the client's `base_url`, then to the URL in the document.
        headers: sent with every request. Pass a mapping, or a function that takes the Context and returns one.
        include: a regular expression for "GET /path", or a function that takes the operation and returns a bool.
        tool_names: new tool names, by operation.
        validate_output: pass False for services that do not follow their document. Tools then have no output schema.
        """
        from dovetail.server.openapi.importer import add_operations
        from dovetail.server.openapi.senders import create_sender, get_base_url

        info = document.get("info") if isinstance(document, Mapping) else None
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
        document: Mapping[str, Any] | str | bytes | None = None,
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
        """Create a server whose tools are the operations of an ASGI application in this process, without a network.

        The document defaults to the application's own (FastAPI, Litestar). The other options are those of
        `from_openapi`. The server runs the lifespan of the application unless you pass `lifespan`.
        """
        from dovetail.server.openapi.senders import create_app_sender, get_openapi_document
        from dovetail.transports.http_server.asgi import run_lifespan

        return cls.from_openapi(
            document or get_openapi_document(app),
            create_app_sender(app, max_response_bytes),
            name=name,
            base_url=base_url,
            headers=headers,
            include=include,
            tool_names=tool_names,
            validate_output=validate_output,
            max_response_bytes=max_response_bytes,
            **{"lifespan": lambda: run_lifespan(app), **options},
        )

    # Change notices. Any task or thread may send them.

    def notify_tools_changed(self) -> None:
        """Notify clients that the list of tools has changed. Registering and removing tools does this for you."""
        self._registry.notify_list_changed("tools")

    def notify_resources_changed(self) -> None:
        """Notify clients that the list of resources or templates has changed. Registering and removing does this."""
        self._registry.notify_list_changed("resources")

    def notify_prompts_changed(self) -> None:
        """Notify clients that the list of prompts has changed. Registering and removing prompts does this for you."""
        self._registry.notify_list_changed("prompts")

    def notify_resource_updated(self, uri: str) -> None:
        """Notify clients that subscribed to a resource that its contents have changed."""
        self._registry.notify_resource_updated(uri)

    # Serving

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
        """Serve until a signal stops the process, or the client closes its end ("stdio").

        "http" takes the options of `HTTPServerOptions`, "unix" takes `path`, "tcp" takes `host` and `port`. With
        `reload`, the program restarts when one of its files changes. Use that only in development.
        """
        from dovetail.server import runners

        check_run_options("run", transport, options)
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
        """Serve in the running event loop. Takes the options of `run`, except `workers` and `reload`.

        Returns when a signal comes or the client closes its end ("stdio"). Cancel it to stop it.
        """
        from dovetail.server import runners

        check_run_options("serve", transport, options)
        await runners.serve(self._make_runnable(), transport, options)

    def asgi(self, **options: Unpack[ASGIOptions]) -> "ASGIApp":
        """Return the server as an ASGI application, to mount in another application or to run with any ASGI server."""
        from dovetail.server.asgi_app import create_asgi_app, create_endpoint

        check_option_names("asgi()", options, ASGIOptions.__annotations__)
        dispatcher = self._dispatcher
        endpoint = create_endpoint(
            dispatcher,
            self._auth,
            options,
            list_scopes=dispatcher.list_used_scopes,
            on_start=self.start,
            on_stop=self.stop,
        )
        self._endpoints.add(endpoint)
        return create_asgi_app(dispatcher, endpoint, options.get("fallback"))

    def open_connection(
        self,
        send: Callable[[bytes], None],
        *,
        drain: "Callable[[], Coroutine[Any, Any, None]] | None" = None,
        principal: str | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> "DuplexServer":
        """Open a connection over a transport of your own. Pass each message to `receive`, and `close` it at the end.

        send: is called with each message to the client.
        drain: waits until the transport can take more.
        principal: who the client is, if your transport knows.
        on_shutdown: is called when the client asks to end the connection.
        """
        from dovetail.transports.duplex_server import DuplexServer

        return DuplexServer(self._dispatcher, send, drain=drain, principal=principal, on_shutdown=on_shutdown)

    async def start(self, user: object = None) -> None:
        """Open the lifespan in the running event loop, if it is not open. Serving does it by itself.

        Each event loop has a lifespan of its own. It stays open until `stop`, or until the event loop ends.
        user: any object that identifies the caller. The lifespan closes after the last `stop(user)`.
        """
        await self._dispatcher.start(user)

    async def stop(self, user: object = None) -> None:
        """End the subscriptions, give running calls a while, stop the rest, close the lifespan.

        Ends what runs in this event loop. With a `user`, only if no other user and no other caller is left.
        """
        await self._dispatcher.stop(user)

    def _make_runnable(self) -> "Runnable":
        from dovetail.server.runners import Runnable

        return Runnable(self, self._dispatcher, self._auth)

    # Reports

    def lint(self, *profiles: str) -> "list[LintReport]":
        """Return the problems that hosts and models may have with each tool, and an estimate of its size in tokens.

        Checks the rules of OpenAI, Gemini and Anthropic unless you name other profiles.
        """
        return self._registry.lint(*profiles)

    def stats(self) -> "ServerStats":
        """Return what is open or running now. Any thread may call this. All counts are 0 when nothing is left."""
        return self._dispatcher.stats(endpoint.stats() for endpoint in tuple(self._endpoints))


# For our own packages, which need more of a server than its users do


def get_dispatcher(server: Server) -> Dispatcher:
    """Return the dispatcher of a server, with its registry and its visibility."""
    return server._dispatcher  # pyright: ignore[reportPrivateUsage]


def get_auth(server: Server) -> Any:
    """Return what was passed to a server as `auth=`."""
    return server._auth  # pyright: ignore[reportPrivateUsage]


def _make_decorator(function: Any, options: dict[str, Any], add: Callable[..., None]) -> Any:
    if callable(function):
        add(function, **options)
        return function
    _check_registrable(function)
    check_type("a name", function, str, "a text")

    def register(decorated: F) -> F:
        _check_registrable(decorated)
        add(decorated, **({"name": function} if function is not None else {}) | options)
        return decorated

    return register


def _check_registrable(value: Any) -> None:
    if isinstance(value, classmethod | property):
        raise TypeError(f"a {type(value).__name__} cannot be offered from the body of its class{METHOD_HINT}")


def _lists_restricted(auth: Any) -> bool:
    """Return whether items are listed to callers who lack their scopes."""
    if auth is None:
        return False
    from dovetail.oauth.guard.guard import Guard, get_credential_checker

    return isinstance(auth, Guard) and get_credential_checker(auth).list_restricted


def _check_auth(auth: Any) -> Any:
    """Return the value of `auth=`. TypeError if it is neither a guard, nor a verifier, nor an authenticator."""
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
