"""Notes in a SQLite database. Every note is a resource, and subscribed clients are notified of changes.

`add_resource` notifies clients of a new note, and `notify_resource_updated` of new contents, in both eras. The variable
NOTES names the database file. Without it, the database is in memory.
"""

import os
import sqlite3
import threading
from typing import Annotated

from dovetail import Server, ToolError
from dovetail.types import ResourcesCapability, ServerCapabilities

app = Server("notes", version="1.0.0", capabilities=ServerCapabilities(resources=ResourcesCapability()))
database = sqlite3.connect(os.environ.get("NOTES", ":memory:"), check_same_thread=False)
lock = threading.Lock()  # plain functions run in threads


def run(statement: str, *values: str) -> list[tuple[str, ...]]:
    """Run a statement in the database and return its rows."""
    with lock, database:
        return database.execute(statement, values).fetchall()


def offer(name: str) -> None:
    """Offer a note as a resource."""

    def read() -> str:
        return run("select text from notes where name = ?", name)[0][0]

    app.add_resource(read, f"notes://{name}", name=name, description=f"The note {name}.", mime_type="text/plain")


@app.tool
def write(name: Annotated[str, "One word"], text: str) -> str:
    """Create or update a note."""
    if not name.isidentifier():
        raise ToolError("The name of a note is one word.")
    is_new = not run("select 1 from notes where name = ?", name)
    run("insert into notes values (?, ?) on conflict (name) do update set text = excluded.text", name, text)
    if is_new:
        offer(name)
    else:
        app.notify_resource_updated(f"notes://{name}")
    return f"{'Created' if is_new else 'Updated'} notes://{name}"


@app.tool(read_only=True)
def search(words: str) -> list[str]:
    """List the names of the notes that contain these words."""
    return [name for (name,) in run("select name from notes where instr(lower(text), lower(?)) order by name", words)]


@app.tool
def erase(name: str) -> str:
    """Erase a note."""
    if not run("delete from notes where name = ? returning name", name):
        raise ToolError(f"There is no note called {name}.")
    app.remove_resource(f"notes://{name}")
    return f"Erased notes://{name}"


run("create table if not exists notes (name text primary key, text text not null)")
for (known,) in run("select name from notes order by name"):
    offer(known)

if __name__ == "__main__":
    app.run()
