"""Notes that change: every client that listens hears of new notes and of new contents.

The same two calls, `changed` (made by `add_resource` itself) and `updated`, reach listeners of both eras.
"""

from typing import Annotated

from dovetail import Server, ToolError

app = Server("notes", version="1.0.0", offers=["resources"])
notes: dict[str, str] = {}


@app.tool
def write(name: Annotated[str, "One word"], text: str) -> str:
    """Write a note, new or not."""
    if not name.isidentifier():
        raise ToolError("The name of a note is one word.")
    uri, is_new = f"notes://{name}", name not in notes
    notes[name] = text
    if is_new:
        app.add_resource(lambda: notes[name], uri, name=name, description=f"The note {name}.", mime_type="text/plain")
    else:
        app.updated(uri)
    return f"{'Created' if is_new else 'Updated'} {uri}"


@app.tool
def erase(name: str) -> str:
    """Erase a note."""
    if notes.pop(name, None) is None:
        raise ToolError(f"There is no note called {name}.")
    app.remove_resource(f"notes://{name}")
    return f"Erased notes://{name}"


if __name__ == "__main__":
    app.run()
