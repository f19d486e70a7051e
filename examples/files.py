"""A read-only folder as resources: `python examples/files.py FOLDER`.

The template refuses `..` and absolute paths, in any spelling, before `read` runs. Links inside the folder can still
lead out of it, so the server checks the real path.
"""

import mimetypes
import sys
from pathlib import Path

from dovetail import ResourceContents, ResourceLink, Server
from dovetail.errors import ResourceNotFound

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
MOST = 1024 * 1024

app = Server("files", instructions="Lists and reads the files of one folder.")


def _inside(path: str) -> Path:
    """Return the path of a file that is really in the folder."""
    found = (FOLDER / path).resolve()
    if not found.is_relative_to(FOLDER) or not found.is_file() or found.stat().st_size > MOST:
        raise ResourceNotFound(f"folder:///{path}")
    return found


@app.resource("folder:///{+path}")
def read(path: str) -> ResourceContents | str | bytes:
    """A file of the folder."""
    raw = _inside(path).read_bytes()
    kind = mimetypes.guess_type(path)[0]
    try:
        return ResourceContents(uri=f"folder:///{path}", mime_type=kind or "text/plain", text=raw.decode())
    except UnicodeDecodeError:
        return raw


@app.tool
def find(pattern: str = "*") -> list[ResourceLink]:
    """Find files of the folder by a pattern such as `*.md`. Returns at most fifty."""
    names = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob(pattern) if path.is_file())
    return [ResourceLink(uri=f"folder:///{name}", name=name) for name in names[:50]]


@app.completion("folder:///{+path}", "path")
def paths(value: str) -> list[str]:
    """Return the paths that begin with the typed text."""
    found = (path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
    return sorted(path for path in found if path.startswith(value))


if __name__ == "__main__":
    app.run()
