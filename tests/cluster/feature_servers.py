"""More servers of a worker process, at other paths: a server with limits and tokens, a gateway, logins and tasks.

`cluster_server.py` starts those that its option `features` names. Each of them has its own prefix in Redis.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from dovetail import Context, Policy, Server, ServerLimits
from dovetail.auth import AuthorizationServer, Guard, JWTVerifier
from dovetail.auth.authorization_server_app import RegisteredClient
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.host.host import Host
from dovetail.middleware import RateLimit, ResponseCache
from dovetail.tasks import task_worker

ISSUER = "https://login.example"
GUARDED_URL = "https://mcp.example/guarded"
LOGIN_ISSUER = "http://127.0.0.1:8000/login"  # This process has another port, but all workers need the same issuer.
LOGIN_CLIENT, REDIRECT_URI = "editor", "http://127.0.0.1/callback"
MAX_CALLS, MAX_RATE, CACHED_URI = 8, 10, "data://version"
RATE_PERIOD_S = 10_000.0  # so long that nothing becomes free during a test
TASK_LEASE_S = 6.0

CreateBackend = Callable[[str], Any]  # Creates a back end with this prefix.
RecordEffect = Callable[[str, str], None]


def create_guarded_server(options: dict[str, Any], create_backend: CreateBackend) -> Server:
    """Return a server with access tokens, a limit on prompts and on calls, and a cached resource."""
    app = Server(
        "guarded",
        cluster=create_backend("guarded"),
        secret_keys=options["secret_keys"],
        auth=Guard(JWTVerifier(issuer=ISSUER, public_keys=options["jwks"])),
        limits=ServerLimits(max_calls_per_principal=MAX_CALLS),
        middleware=[
            RateLimit(MAX_RATE, per=RATE_PERIOD_S, methods=["prompts/get"]),
            ResponseCache([CACHED_URI], shared=True, ttl=600.0),
        ],
    )

    @app.tool
    async def hold(ctx: Context) -> None:
        """Run until the caller leaves."""
        await ctx.progress(1)
        await asyncio.Event().wait()

    @app.tool
    async def report_change() -> None:
        """Report that the version has changed."""
        app.notify_resource_updated(CACHED_URI)

    @app.resource(CACHED_URI)
    def version() -> str:
        """The version in a file that the test writes."""
        return Path(options["version"]).read_text()

    @app.prompt
    def greet() -> str:
        """Greet."""
        return "Hello"

    return app


@contextlib.asynccontextmanager
async def run_gateway(
    options: dict[str, Any], create_backend: CreateBackend, record_effect: RecordEffect
) -> AsyncGenerator[Server]:
    """Run a gateway to a server with two tools. Its callers must allow one of them."""
    far = Server("far")

    @far.tool
    async def change(token: str) -> str:
        """Change something."""
        record_effect(token, "change")
        return token

    @far.tool(read_only=True)
    async def ask(token: str, ctx: Context) -> str:
        """Ask for a name."""
        name = await ctx.elicit("Name?", str)
        record_effect(token, "ask")
        return f"{token} {name}"

    policy = Policy("ask", [{"action": "allow", "tool": "ask"}])
    async with Host(policy=policy) as host:
        host.add("far", far, protocol_version="2025-11-25")
        yield host.as_server(cluster=create_backend("gateway"), secret_keys=options["secret_keys"])


def create_login_servers(options: dict[str, Any], create_backend: CreateBackend) -> tuple[AuthorizationServer, Server]:
    """Return an authorization server with its logins in Redis, and a server that accepts its tokens."""
    logins = AuthorizationServer(
        issuer=LOGIN_ISSUER,
        users={"ada": "password"},
        clients=[RegisteredClient(LOGIN_CLIENT, redirect_uris=[REDIRECT_URI])],
        store=create_backend("logins"),
        secret_key=options["secret_keys"][0],
    )
    app = Server("account", auth=Guard(logins.verifier()))

    @app.tool
    async def get_name(ctx: Context) -> str:
        """Return the name of the user."""
        assert ctx.principal is not None
        return ctx.principal.subject

    return logins, app


def create_task_server(options: dict[str, Any], record_effect: RecordEffect) -> Server:
    """Return a server whose tasks are in Redis."""
    task_worker.DEFAULT_OPTIONS = task_worker.WorkerOptions(lease_seconds=TASK_LEASE_S, due_interval=0.2)
    app = Server(
        "tasks",
        tasks=TaskOptions(store=options["cluster"], poll_interval=0.1),
        secret_keys=options["secret_keys"],
    )

    async def work(token: str, seconds: float) -> str:
        record_effect(token, "begin")
        await asyncio.sleep(seconds)
        record_effect(token, "end")
        return token

    @app.tool(task=True)
    async def run_once(token: str, seconds: float) -> str:
        """Work without retries."""
        return await work(token, seconds)

    @app.tool(task=TaskConfig(max_retries=1))
    async def retry(token: str, seconds: float, ctx: Context) -> str:
        """Work with one retry."""
        return await work(token, seconds if ctx.attempt == 1 else 0.0)

    return app


class FeatureServers:
    """An ASGI application with the servers of all features. A path begins with the name of its feature."""

    def __init__(self) -> None:
        self._apps: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._apps[scope["path"].split("/")[1]](scope, receive, send)

    @contextlib.asynccontextmanager
    async def run(
        self, options: dict[str, Any], create_backend: CreateBackend, record_effect: RecordEffect
    ) -> AsyncGenerator[None]:
        """Run the servers that the options name."""
        async with contextlib.AsyncExitStack() as stack:

            async def add(name: str, app: Server, **asgi_options: Any) -> None:
                self._apps[name] = app.asgi(path=f"/{name}", **asgi_options)
                await app.start()
                stack.push_async_callback(app.stop)

            features = options.get("features", ())
            if "guarded" in features:
                await add("guarded", create_guarded_server(options, create_backend), public_url=GUARDED_URL)
            if "gateway" in features:
                gateway = run_gateway(options, create_backend, record_effect)
                await add("gateway", await stack.enter_async_context(gateway))
            if "login" in features:
                logins, app = create_login_servers(options, create_backend)
                self._apps["login"] = logins
                await add("account", app, public_url="http://127.0.0.1:8000/account")
            if "tasks" in features:
                await add("tasks", create_task_server(options, record_effect))
            yield
