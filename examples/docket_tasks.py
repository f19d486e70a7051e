"""Run the tasks of a server in worker processes, with Redis or Valkey. Needs the extra `docket` and a Redis server.

In this folder, run `dovetail worker docket_tasks.py` on each machine that should run tasks, and `docket_tasks.py` with
Python on each machine that should answer clients. Then call the tool `count_primes` at http://127.0.0.1:8000/mcp with a
client that supports tasks.
"""

import os

from dovetail import Context, Server
from dovetail.extensions import DocketEngine, TaskConfig, TaskOptions

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
SECRET_KEY = os.environ.get("SECRET_KEY")

app = Server(
    "primes",
    tasks=TaskOptions(store=REDIS_URL, engine=DocketEngine(REDIS_URL, "primes"), workers_only=True),
    secret_keys=[SECRET_KEY] if SECRET_KEY else [],
)


# Counting twice does no harm, so another worker may start again if a worker is lost.
@app.tool(task=TaskConfig(max_retries=2))
def count_primes(below: int, ctx: Context) -> int:
    """Count the primes below a number."""
    count = 0
    for number in range(2, below):
        if number % 1000 == 0:
            ctx.wait(ctx.progress(number, below, f"{count} primes"))
        count += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return count


if __name__ == "__main__":
    app.run("http", port=int(os.environ.get("PORT", "8000")))
