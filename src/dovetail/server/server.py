"""Server: how an exchange becomes a result, out of what the server offers.

Knows exchanges, not transports. A request looks up and runs; everything it needs was compiled at registration.
No author's function can end the server or disturb another call: whatever it raises is contained here.
"""

import asyncio
import os
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from dovetail.errors import (
    Busy,
    InsufficientScope,
    InvalidParams,
    MethodNotFound,
    PeerError,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    ToolNotFound,
    clip,
)
from dovetail.protocol import topics
from dovetail.protocol.around import Call, Middleware, around, checked, sees
from dovetail.protocol.exchange import Exchange, typed
from dovetail.protocol.headers import check_params
from dovetail.protocol.limits import Limits
from dovetail.protocol.mounting import MISSING
from dovetail.protocol.principal import Principal
from dovetail.protocol.state import Sealer
from dovetail.server.asking import Asking, InputNeeded, InputRequired
from dovetail.server.changes import Mailbox
from dovetail.server.complete import matching, suggestions
from dovetail.server.content import failure, prompt_messages, read_result, resource_contents
from dovetail.server.context import Context
from dovetail.server.faults import alone, contained
from dovetail.server.life import Life, Lifespan, LoopState, lifespan_of, log_start_failure
from dovetail.server.options import Lifetime, check_icons, expect
from dovetail.server.paging import Pages
from dovetail.server.runner import Runner
from dovetail.server.signature import BadArguments
from dovetail.server.threads import Threads
from dovetail.server.tool import error_result
from dovetail.server.views import Views
from dovetail.wire.completion import CompleteParams, CompleteResult, PromptReference
from dovetail.wire.content import Icon
from dovetail.wire.lifecycle import DiscoverResult, Implementation, ServerCapabilities
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.revisions import DRAFT, REVISIONS
from dovetail.wire.shape import Result, replace
from dovetail.wire.subscriptions import ListenParams, ListenResult, SubscriptionFilter

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.protocol.mounting import Kind, Mountable
    from dovetail.protocol.recording import Tap
    from dovetail.protocol.stats import ServerStats
    from dovetail.server.access import Predicate, Rules
    from dovetail.server.mount import Mounts
    from dovetail.server.naming import Names
    from dovetail.server.offload import Offload
    from dovetail.server.transforms import Transform

_SWEEP: Final = 0.5  # how often running calls are looked at, seconds
_SHORT: Final = 2.0  # a tool's own limit under this has a timer of its own
_LARGE: Final = 64 * 1024  # bytes of a message worth counting
_ASKED: Final[dict[str, tuple["Kind", str]]] = {
    "tools/call": ("tool", "name"),
    "resources/read": ("resource", "uri"),
    "prompts/get": ("prompt", "name"),
}


class Server(Views):
    """A server to register tools, resources and prompts on."""

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: list[Icon] | None = None,
        instructions: str | None = None,
        revisions: Sequence[str] = REVISIONS,
        limits: Limits | None = None,
        lifespan: Lifespan | None = None,
        secrets: Sequence[str | bytes] = (),
        page_size: int | None = None,
        cache: Lifetime | Mapping[str, Lifetime] | None = None,
        offers: Collection[str] = (),
        offload: "Offload | None" = None,
        profile: str | None = None,
        lint: bool = False,
        experimental: dict[str, Any] | None = None,
        extensions: dict[str, Any] | None = None,
        middleware: Sequence[Middleware] = (),
        auth: Any = None,
        trace: "str | Path | None" = None,
        debug: bool = False,
    ) -> None:
        texts = {"name": name, "version": version, "title": title, "description": description}
        for option, value in (texts | {"website_url": website_url, "instructions": instructions}).items():
            expect(f"{option}=", value, str, "a text")
        for option, value in {"debug": debug, "lint": lint}.items():
            expect(f"{option}=", value, bool, "True or False")
        for option, value in {"experimental": experimental, "extensions": extensions}.items():
            expect(f"{option}=", value, Mapping, "a dict")
        check_icons(icons)
        expect("limits=", limits, Limits, "Limits(...)")
        expect("page_size=", page_size, int, "a number")
        expect("trace=", trace, (str, os.PathLike), "the path of a file")
        if callable(middleware):
            raise TypeError(f"middleware= must be a list of functions, not {middleware!r}")
        if isinstance(secrets, str | bytes):
            raise TypeError("secrets are several, the newest first: write secrets=[...]")
        limits = limits or Limits()
        pages = Pages(page_size, limits.cursor)
        super().__init__(
            pages,
            cache=cache,
            always=offers,
            experimental=experimental,
            extensions=extensions,
            offload=offload,
            profile=profile,
            lint=lint,
            show_locked=getattr(auth, "show_locked", False),
        )
        self.auth = self.checked_auth(auth)  # who is served over HTTP: the joint makes a guard of it
        self.implementation = Implementation(
            name=name, version=version, title=title, description=description, website_url=website_url, icons=icons
        )
        self.instructions = instructions
        self.revisions = _known_revisions(revisions)
        self.limits = limits
        self.debug = debug
        self.trace = trace
        self._tap: Tap | None = None
        self._endpoints: weakref.WeakSet[Any] = weakref.WeakSet()  # those that `asgi` made
        self._sealer = Sealer(secrets)
        self._shares_secrets = bool(secrets)
        self._threads = Threads(self.limits)
        self._states: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._state: LoopState | None = None  # one of them, the last that was looked up
        self._lifespan = lifespan_of(self, lifespan)
        self.mounts: Mounts | None = None  # once something is mounted
        self._middleware: list[Middleware] = []
        self._work: dict[str, Call] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool if self._shelf is None else self._call_and_keep,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }
        self._chains: dict[str, Call] = self._work
        for function in middleware:
            self.middleware(function)

    def checked_auth(self, auth: Any) -> Any:
        """What was given as `auth`, if it can guard a server; the joint knows what can."""
        return auth

    @property
    def name(self) -> str:
        """The name the server was given."""
        return self.implementation.name

    @property
    def tap(self) -> "Tap | None":
        """Who is told of every message."""
        return self._tap

    @property
    def keeps_results(self) -> bool:
        """Whether large results are kept back in this process, here or by something mounted."""
        inside = self.mounts.local() if self.mounts is not None else ()
        return self._shelf is not None or any(one.keeps_results for one in inside)

    @property
    def watched(self) -> bool:
        """Whether results are looked at here, by middleware or for their size."""
        return self._shelf is not None or any(sees(function) for function in self._middleware)

    def middleware(self, function: Middleware) -> Middleware:
        """Put a function around every request: `async def around(exchange, proceed)`, awaiting `proceed(exchange)`.

        What a handshake session answers by itself (initialize, ping, levels, subscriptions) does not come by here. An
        object with a method `heard(method, uri)` is told of every change the server tells of.
        """
        self._middleware.append(checked(function))
        if callable(getattr(function, "heard", None)):
            self.changes.follow(cast("Any", function).heard)
        self._chains = {method: around(self._middleware, work) for method, work in self._work.items()}
        return function

    def mount(
        self,
        target: Any,
        prefix: "str | Names" = "",
        *,
        transforms: "Mapping[str, Transform] | None" = None,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible: "Predicate | None" = None,
    ) -> Callable[[], None]:
        """Offer what another server offers, now and later; call what is returned to stop.

        target: a Server of this process, or a Client of one that is anywhere. `prefix` goes before names as
        `prefix_name` and before URIs as `prefix+uri`. `transforms` change things, by the name or URI they have at
        home, and must fit what is there (of a server elsewhere, the log tells); with `tags`, only what has one of them
        is offered. All of it is for callers with the `scopes`, and for whom `visible`, a function of the principal, is
        true.
        """
        from dovetail.server.local import leads_to
        from dovetail.server.mount import Mounts
        from dovetail.server.naming import Names

        if not hasattr(target, "mountable"):
            raise TypeError(f"mount takes a Server, or a Client of one that is elsewhere, not {target!r}")
        if isinstance(target, Server) and leads_to(target, self):
            raise ValueError(f"{target.name} cannot be mounted on {self.name}, which is part of it")
        if self.mounts is None:
            self.mounts = Mounts(self, self._work)
            self._work = self.mounts.work
            self._chains = {method: around(self._middleware, work) for method, work in self._work.items()}
        if isinstance(target, Server) and not target._shares_secrets:
            target._sealer = self._sealer  # so that any worker of this server opens what another sealed
        rule = None
        if scopes or visible is not None:
            from dovetail.server.access import access

            rule = access(scopes, visible)
            self._ruled()
        names = prefix if isinstance(prefix, Names) else Names(prefix, transforms or {}, tags)
        return self.mounts.add(target.mountable(), names, rule)

    def _switch(self, names: Collection[str], tags: Collection[str], *, enabled: bool) -> None:
        super()._switch(names, tags, enabled=enabled)
        if self.mounts is not None and (tags or not set(names).issubset(self._names())):
            self.changed("tools", "resources", "prompts")

    def _mounted(self, name: str) -> bool:
        return self.mounts is not None and self.mounts.may_have(name)

    def _prove(self, rules: "Rules") -> None:
        """Say once what rules are about nothing; where something is elsewhere, its first list tells."""
        mounted = [] if self.mounts is None else self.mounts.names()
        if mounted is not None:
            rules.tell_idle(self.name, self._names() + mounted, lambda _: False)

    @property
    def rules(self) -> "Rules | None":
        """Who may use what; None where everything is for everyone."""
        return self._rules

    def needed_scopes(self) -> tuple[str, ...]:
        """Every scope that something offered here takes, what is mounted from this process among it."""
        own = self._rules.scopes if self._rules is not None else ()
        return tuple(dict.fromkeys((*own, *(self.mounts.needed_scopes() if self.mounts is not None else ()))))

    def mountable(self) -> "Mountable":
        """This server as another one mounts it."""
        from dovetail.server.local import Local

        return Local(self)

    async def work_on(self, exchange: Exchange) -> Result | bytes:
        """What this server makes of an exchange that another one has taken in."""
        if not self._middleware:
            return await self._chains[exchange.method](exchange)
        before, exchange.check = exchange.check, self._check
        try:
            return await self._chains[exchange.method](exchange)
        finally:
            exchange.check = before

    async def _check(self, exchange: Exchange) -> None:
        kind, field = _ASKED[exchange.method]
        await self.check(kind, exchange.params[field], exchange)

    async def check(self, kind: "Kind", name: str, exchange: Exchange) -> None:
        """Refuse what is not there for this caller, as its work would, without doing it."""
        principal = exchange.caller.principal
        if self.mounts is not None and not self.has(kind, name, principal):
            await self.mounts.owners.check(kind, name, exchange)
            return
        if kind == "resource":
            self._resource_at(name, principal)
            return
        self.challenge(kind, name, principal)
        if not self.has(kind, name, principal):
            raise MISSING[kind](name)

    def capabilities(self) -> ServerCapabilities:
        """What is offered now."""
        own = super().capabilities()
        return own if self.mounts is None else self.mounts.capabilities(own)

    # Life

    async def start(self, user: object = None) -> None:
        """Open the lifespan in the running event loop, if it is not open. Serving does it by itself.

        Each event loop has a lifespan of its own. It stays open until `stop`, or until the event loop ends.
        user: any object that identifies the caller. The lifespan closes after the last `stop(user)`.
        """
        state = self._here()
        while state.is_closing:
            await state.closed.wait()
            state = self._here()
        state.users.add(self if user is None else user)
        try:
            if self._rules is not None and self._rules.unproven:
                self._prove(self._rules)
            if self.mounts is not None:
                await self.mounts.start()
            if self._lifespan is not None:
                await self._life(state, self._lifespan).entered()
        except BaseException:
            await self._release(state, self if user is None else user)
            raise

    def _life(self, state: LoopState, lifespan: Lifespan) -> Life:
        """The lifespan of this event loop, begun if it is not open."""
        life = state.life
        if life is None or not (life.is_open or life.is_starting):
            life = state.life = Life(lifespan, self.name)
        return life

    async def _enter_for_request(self, state: LoopState, lifespan: Lifespan) -> None:
        """Open the lifespan for a request to a server that was not started. It stays open until `stop`."""
        life = self._life(state, lifespan)
        try:
            await life.entered()
        except BaseException as exc:
            if exc is life.failure:
                raise log_start_failure(self.name, exc) from None
            raise
        state.users.add(self)

    async def stop(self, user: object = None) -> None:
        """End the subscriptions, give running calls a while, stop the rest, close the lifespan.

        Ends what runs in this event loop. With a `user`, only if no other user and no other caller is left.
        """
        if user is None:
            await self._close(self._here())
        elif (state := self._states.get(asyncio.get_running_loop())) is not None:
            await self._release(state, user)

    async def _release(self, state: LoopState, user: object) -> None:
        if user not in state.users:
            return
        state.users.remove(user)
        if state.users:
            return
        if any(exchange.verdict is None for exchange in state.running) or self.changes.has_listener(state.loop):
            state.users.add(self)  # callers that did not start the server still need it, and their end is not reported
        else:
            await self._close(state)

    async def _close(self, state: LoopState) -> None:
        if state.is_closing:
            await state.closed.wait()
            return
        state.is_closing = True
        try:
            for box in tuple(state.mailboxes):
                box.close()
            await _wait_for_calls(state, self.limits.drain)
            for exchange in tuple(state.running):
                if exchange.task is not asyncio.current_task():
                    exchange.end("shutdown")
            await _wait_for_calls(state, 1.0)
            if state.life is not None:
                await state.life.leave()
            if self.mounts is not None:
                await self.mounts.stop()
        finally:
            if state.life is not None:
                state.life.end()
            self._states.pop(state.loop, None)
            self._state = None
            state.closed.set()

    def stats(self) -> "ServerStats":
        """Return what is open or running now. Any thread may call this. All counts are 0 when nothing is left."""
        from dovetail.protocol.stats import ServerStats

        states = tuple(self._states.values())
        endpoints = [endpoint.stats() for endpoint in tuple(self._endpoints)]
        return ServerStats(
            running_calls=sum(len(state.running) for state in states),
            open_questions=sum(len(call.questions or ()) for state in states for call in tuple(state.running)),
            subscriptions=sum(len(state.mailboxes) for state in states),
            busy_threads=self._threads.busy,
            sessions=sum(one.sessions for one in endpoints),
            streams=sum(one.streams for one in endpoints),
            buffered_bytes=sum(one.buffered_bytes for one in endpoints),
            replay_bytes=sum(one.replay_bytes for one in endpoints),
        )

    def _here(self) -> LoopState:
        """The state of the running event loop."""
        loop = asyncio.get_running_loop()
        state = self._state
        return state if state is not None and state.loop is loop else self._look_up(loop)

    def _look_up(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        state = self._states.get(loop)
        if state is None:
            for other in tuple(self._states):
                if other.is_closed():
                    self._states.pop(other, None)
            state = self._states[loop] = LoopState(loop)
        self._state = state
        return state

    # What transports call

    async def handle(self, exchange: Exchange) -> Result | bytes:
        """The result of one exchange; ProtocolError for everything that is to be refused."""
        work = self._chains.get(exchange.method)
        if work is None:
            raise MethodNotFound(exchange.method)
        loop = asyncio.get_running_loop()
        state = self._state
        if state is None or state.loop is not loop:
            state = self._look_up(loop)
        if state.is_closing:
            raise Busy("The server is shutting down")
        if self._lifespan is not None and (state.life is None or not state.life.is_open):
            await self._enter_for_request(state, self._lifespan)  # what is mounted is started when it is used
            if state.is_closing:  # `stop` was called meanwhile, and does not wait for this request
                raise Busy("The server is shutting down")
        if exchange.method == "subscriptions/listen":
            return await self._handle_listen(exchange, work, state)
        running = state.running
        if (len(running) >= self.limits.calls and self._is_full(running)) or (
            exchange.size > _LARGE and self._crowded(exchange, running)
        ):
            raise Busy("Too many calls are at work")
        origin = exchange.origin
        if origin is not None:
            if state.calls[origin] >= self.limits.calls_per_principal:
                self._check_share(origin, state)
            state.calls[origin] += 1
        if exchange.task is None:
            exchange.task = asyncio.current_task(loop)
        exchange.deadline = loop.time() + self.limits.run_time
        if not state.is_sweeping:
            state.is_sweeping = True
            loop.call_later(self._sweep_every(), self._sweep, state)
        running.add(exchange)
        if self._middleware:
            exchange.check = self._check
        try:
            return await work(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            one = alone(exc)
            if isinstance(one, ProtocolError):
                raise one from None
            if isinstance(one, (ToolError, PeerError)):
                raise InvalidParams(str(one)) from None
            raise self._contained(exchange, exc, exchange.method) from None
        finally:
            running.discard(exchange)
            exchange.emit = None  # what the author left running has lost its ear. spec: progress#implementation-notes
            if origin is not None:
                _give_back(state.calls, origin)

    async def _handle_listen(self, exchange: Exchange, work: Call, state: LoopState) -> Result:
        """A subscription lives as long as its listener: it is not a call at work, and has a share of its own."""
        if exchange.origin is not None:
            if state.listens[exchange.origin] >= self.limits.listens:
                raise _share_used_up(self.limits.listens)
            state.listens[exchange.origin] += 1
        try:
            return await work(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._contained(exchange, exc, exchange.method) from None
        finally:
            if exchange.origin is not None:
                _give_back(state.listens, exchange.origin)

    def _is_full(self, running: set[Exchange]) -> bool:
        """Whether there is no room for one more call. Those that wait for a user have as much room as the others."""
        waiting = sum(1 for exchange in running if exchange.questions)
        return len(running) - min(waiting, self.limits.calls) >= self.limits.calls

    def _check_share(self, origin: str, state: LoopState) -> None:
        """Raise Busy if there is no room for one more call of this caller, those that wait for a user apart."""
        limit = self.limits.calls_per_principal
        waiting = sum(1 for exchange in state.running if exchange.questions and exchange.origin == origin)
        if state.calls[origin] - min(waiting, limit) >= limit:
            raise _share_used_up(limit)

    def _crowded(self, exchange: Exchange, running: set[Exchange]) -> bool:
        """Whether one more large message would be too much; small ones are never held up by large ones."""
        large = sum(one.size for one in running if one.size > _LARGE)
        return large > 0 and large + exchange.size > self.limits.calls_bytes

    # Tools

    async def _call_tool(self, exchange: Exchange) -> Result:
        params = exchange.params
        name, arguments = params.get("name"), params.get("arguments")
        tool = self._tools.get(name) if type(name) is str else None
        if tool is None or (self._rules is not None and not self._there(exchange, "tool", tool.name)):
            raise ToolNotFound(name) if type(name) is str else InvalidParams("Invalid params: name must be a string")
        if arguments is None:
            arguments = {}
        elif type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        if tool.headers and exchange.headers is not None and exchange.caller.stateless:
            check_params(tool.headers, arguments, exchange.headers)
        exchange.wraps = tool.wraps
        try:
            return tool.output.shape(await self._run(exchange, tool.runner, tool.signature, arguments))
        except ProtocolError:
            raise
        except BaseException as exc:
            exchange.fault = one = alone(exc)
            if isinstance(one, ProtocolError):
                raise one from None
            if isinstance(one, (ToolError, PeerError)):
                return failure(one)
            return error_result(self._contained(exchange, exc, f"tool {tool.name}").message)

    async def _call_and_keep(self, exchange: Exchange) -> Result:
        """A call whose result may be too large to travel."""
        result = await self._call_tool(exchange)
        assert self._shelf is not None
        tool = self._tools.get(exchange.params["name"])
        published = tool is None or tool.output.schema is not None
        return self._shelf.lighten(result, exchange.caller.principal, published=published)

    def lighten(self, result: Result, exchange: Exchange, *, published: bool) -> Result:
        """The result of a mounted tool, of which large parts may be kept back here."""
        if self._shelf is None:
            return result
        return self._shelf.lighten(result, exchange.caller.principal, published=published)

    def _run(self, exchange: Exchange, runner: Runner, signature: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Bind and call; what is to be awaited is the author's own coroutine, unless it may ask something."""
        params = exchange.params
        if signature.context is not None or "requestState" in params or "inputResponses" in params:
            return self._run_asking(exchange, runner, signature, arguments)
        args, kwargs = signature.bind(arguments, None)
        if runner.timeout is not None:
            exchange.deadline = _now() + runner.timeout
            if runner.timeout < _SHORT:
                return _promptly(exchange, runner(args, kwargs, self._threads, exchange.origin))
        return runner(args, kwargs, self._threads, exchange.origin)

    async def _run_asking(self, exchange: Exchange, runner: Runner, signature: Any, arguments: dict[str, Any]) -> Any:
        """Bind, call, and turn a question without an answer into the result that asks it."""
        asking = Asking(exchange, self._sealer, self.limits.state_time, self.debug)
        life = self._here().life if self._lifespan is not None else None
        context = Context(exchange, asking, self.name, None if life is None else life.value)
        while True:
            asking.begin()
            args, kwargs = signature.bind(arguments, context)
            if runner.timeout is not None:
                exchange.deadline = _now() + runner.timeout
            try:
                work = runner(args, kwargs, self._threads, exchange.origin)
                value = await (_promptly(exchange, work) if (runner.timeout or _SHORT) < _SHORT else work)
            except InputNeeded:
                return asking.required()
            except BaseExceptionGroup as group:
                if group.split(InputNeeded)[1] is not None:
                    raise
                return asking.required()  # asked side by side, in a task group
            if asking.swallowed:
                raise RuntimeError(
                    "a question was asked, but an `except:` or `except BaseException:` kept it from the client"
                )
            if not isinstance(value, InputRequired):
                self._check_rounds(asking)
                return value
            if exchange.caller.stateless:
                return asking.explicit(value)
            await asking.answer_for(value)

    def _check_rounds(self, asking: Asking) -> None:
        if self.debug and (unreached := asking.unreached()):
            raise RuntimeError(
                f"the questions {', '.join(unreached)} were asked in an earlier round but not in the last one: a "
                "function that asks runs again from the top in each round and must ask the same questions"
            )

    # Resources

    async def _read_resource(self, exchange: Exchange) -> Result:
        self._check_offered(exchange, "resources", self._resources or self._templates)
        uri = exchange.params.get("uri")
        if type(uri) is not str:
            raise InvalidParams("Invalid params: uri must be a string")
        if len(uri) > self.limits.uri:
            raise InvalidParams(f"Invalid params: uri is longer than {self.limits.uri} characters")
        resource, variables = self._resource_at(uri, exchange.caller.principal)
        try:
            value = await self._run(exchange, resource.runner, resource.signature, variables)
        except BadArguments:
            raise ResourceNotFound(uri) from None  # a variable of another kind names nothing
        if isinstance(value, Result):
            result = read_result(value) if isinstance(value, ReadResourceResult) else value
        else:
            contents = resource_contents(value, uri, resource.declaration.mime_type)
            result = ReadResourceResult(contents=contents)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is None:
            life = resource.lifetime or self._lifetime("resources/read")
            if self._rules is not None and self._is_ruled(self._rules, resource, uri, variables):
                life = Lifetime(life.ttl_ms)  # what is not for everyone is not to be shared
            result = replace(result, ttl_ms=life.ttl_ms, cache_scope=life.scope)
        return result

    def readable(self, uri: str, principal: Principal | None) -> bool:
        """Whether this caller may hear of a resource, which a session then does; InsufficientScope as for reading."""
        audible = self.audible(uri, principal)
        if not audible:
            self.challenge("resource", uri, principal)
        elif self.mounts is not None:
            self.mounts.wanted(uri, principal)
        return audible

    def audible(self, uri: str, principal: Principal | None) -> bool:
        """Whether this caller may hear of a resource; of one that is not there, where everything is for everyone."""
        try:
            if self._rules is not None or self.mounts is not None:
                self._resource_at(uri, principal)
        except ResourceNotFound:
            return self._rules is None if self.mounts is None else self.mounts.owners.audible(uri, principal)
        except InsufficientScope:
            return False
        return True

    # Prompts

    async def _get_prompt(self, exchange: Exchange) -> Result:
        self._check_offered(exchange, "prompts", self._prompts)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        prompt = self._prompts.get(name) if type(name) is str else None
        if prompt is None or not self._there(exchange, "prompt", prompt.declaration.name):
            raise PromptNotFound(name) if type(name) is str else InvalidParams("Invalid params: name must be a string")
        if arguments is not None and type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        value = await self._run(exchange, prompt.runner, prompt.signature, arguments or {})
        if isinstance(value, Result) and not isinstance(value, GetPromptResult):
            return value
        try:
            shaped = prompt_messages(value)
        except (TypeError, ValueError) as exc:
            raise TypeError(f"{prompt.signature.where}: {exc}") from exc
        if isinstance(shaped, GetPromptResult):
            return shaped
        return GetPromptResult(messages=shaped, description=prompt.declaration.description)

    # Completion

    async def _complete(self, exchange: Exchange) -> Result:
        if not self._completes():
            raise MethodNotFound(exchange.method)
        params = typed(exchange, CompleteParams)
        of = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        holder: Any = (self._prompts if isinstance(params.ref, PromptReference) else self._templates).get(of)
        kind = "prompt" if isinstance(params.ref, PromptReference) else "resource template"
        if holder is None or not self._there(exchange, kind, of):
            raise InvalidParams(f"Invalid params: nothing is called {clip(of)}")
        argument, value = params.argument.name, params.argument.value
        if argument not in holder.signature.parameters:
            raise InvalidParams(f"Invalid params: {clip(of)} has no argument {clip(argument)}")
        completer = self._completers.get((of, argument))
        if completer is None:
            found: Any = matching(holder.signature.choices.get(argument, ()), value)
        else:
            others = (params.context.arguments if params.context else None) or {}
            args = completer.arguments(value, others)
            found = await completer.runner(args, {}, self._threads, exchange.origin)
        return CompleteResult(completion=suggestions(found))

    async def _discover(self, exchange: Exchange) -> Result:
        life = self._lifetime(exchange.method)
        return DiscoverResult(
            supported_versions=[one for one in reversed(self.revisions) if one != DRAFT],
            capabilities=self.capabilities(),
            instructions=self.instructions,
            ttl_ms=life.ttl_ms,
            cache_scope=life.scope,
        )

    # Listening

    async def _listen(self, exchange: Exchange) -> Result:
        asked = typed(exchange, ListenParams).notifications
        if any(len(uri) > self.limits.uri for uri in asked.resource_subscriptions or ()):
            raise InvalidParams(f"Invalid params: uri is longer than {self.limits.uri} characters")
        capabilities = self.capabilities()
        if capabilities.tools is None and capabilities.prompts is None and capabilities.resources is None:
            raise MethodNotFound(exchange.method)
        filter = self._audible(topics.honoured(asked, capabilities), exchange.caller.principal)
        meta = {SUBSCRIPTION_ID: exchange.id}
        spelled = topics.spellings(filter.resource_subscriptions or ())
        box = Mailbox(topics.matcher(filter))
        stop = self.changes.listen(box)
        mailboxes = self._here().mailboxes
        mailboxes.add(box)
        lapse = _at_its_end(exchange.caller.principal, box.close)
        try:
            await exchange.notify("notifications/subscriptions/acknowledged", {"_meta": meta, "notifications": filter})
            while (news := await box.take()) is not None:
                for method, changed in news:
                    for uri in topics.echoes(spelled, changed):
                        await exchange.notify(method, {"_meta": meta} | ({} if uri is None else {"uri": uri}))
        finally:
            stop()
            mailboxes.discard(box)
            if lapse is not None:
                lapse.cancel()
        return ListenResult(meta=meta)

    def _audible(self, filter: SubscriptionFilter, principal: Principal | None) -> SubscriptionFilter:
        uris = filter.resource_subscriptions
        if not uris or (self._rules is None and self.mounts is None):
            return filter
        return replace(filter, resource_subscriptions=[uri for uri in uris if self.audible(uri, principal)])

    # Containment

    def _sweep_every(self) -> float:
        return min(_SWEEP, self.limits.run_time / 4)

    def _sweep(self, state: LoopState) -> None:
        """Stop the calls whose time is up: one look at all of them is cheaper than a timer for each."""
        loop, running = state.loop, state.running
        now = loop.time()
        for exchange in tuple(running):
            if exchange.questions:
                overdue, verdict = now > exchange.questions[0] + self.limits.state_time, "unanswered"
            else:
                overdue, verdict = exchange.deadline is not None and now > exchange.deadline, "timeout"
            if overdue:
                exchange.end(verdict)
        if running:
            loop.call_later(self._sweep_every(), self._sweep, state)
        else:
            state.is_sweeping = False

    def _contained(self, exchange: Exchange, exc: BaseException, what: str) -> ProtocolError:
        return contained(exchange, exc, what, server=self.name, debug=self.debug)


async def _wait_for_calls(state: LoopState, patience: float) -> None:
    tasks = [exchange.task for exchange in state.running if exchange.task is not asyncio.current_task()]
    if tasks:
        await asyncio.wait(tasks, timeout=patience)


def _at_its_end(principal: Principal | None, act: Callable[[], None]) -> asyncio.TimerHandle | None:
    """Act when the caller has to prove itself anew."""
    lasts = None if principal is None else principal.lasts(time.time())
    return None if lasts is None else asyncio.get_running_loop().call_later(lasts, act)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _promptly(exchange: Exchange, work: Awaitable[Any]) -> Any:
    """Do the work, stopped at its deadline and not at the next sweep."""
    deadline = exchange.deadline
    assert deadline is not None
    timer = asyncio.get_running_loop().call_at(deadline, _expire, exchange, deadline)
    try:
        return await work
    finally:
        timer.cancel()


def _expire(exchange: Exchange, deadline: float) -> None:
    if exchange.deadline == deadline and not exchange.questions:  # else the sweep sees to what is left
        exchange.end("timeout")


def _share_used_up(limit: int) -> Busy:
    return Busy(f"More than {limit} of your requests are at work", own=True)


def _give_back(counter: Counter[str], origin: str) -> None:
    counter[origin] -= 1
    if not counter[origin]:
        del counter[origin]


def _known_revisions(revisions: Sequence[str]) -> tuple[str, ...]:
    unknown = [one for one in revisions if one not in REVISIONS]
    if unknown or not revisions:
        raise ValueError(f"revisions must be some of {', '.join(REVISIONS)}; got {', '.join(unknown) or 'none'}")
    return tuple(one for one in REVISIONS if one in revisions)
