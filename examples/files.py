"""A read-only folder as resources: `python examples/files.py FOLDER`.

The template refuses `..` and absolute paths, in any spelling, before `read` runs. The pattern of `find` is not a
template variable, so `find` checks it. Links inside the folder can still lead out of it, so the server checks the real
path.
"""

import mimetypes
import sys
from pathlib import Path, PurePath

from dovetail import ResourceContents, ResourceLink, Server, ToolError
from dovetail.errors import ResourceNotFound

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
MOST = 1024 * 1024

app = Server("files", instructions="Lists and reads the files of one folder.")


def _is_inside(path: Path) -> bool:
    """Return whether a file is really in the folder."""
    return path.resolve().is_relative_to(FOLDER) and path.is_file()


def _inside(path: str) -> Path:
    """Return the path of a file that is really in the folder."""
    found = FOLDER / path
    if not _is_inside(found) or found.stat().st_size > MOST:
        raise ResourceNotFound(f"folder:///{path}")
    return found.resolve()


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
    if ".." in PurePath(pattern).parts or PurePath(pattern).anchor:
        raise ToolError(f"the pattern must be inside the folder, not {pattern!r}")
    names = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob(pattern) if _is_inside(path))
    return [ResourceLink(uri=f"folder:///{name}", name=name) for name in names[:50]]


@app.completion("folder:///{+path}", "path")
def paths(value: str) -> list[str]:
    """Return the paths that begin with the typed text."""
    found = (path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if _is_inside(path))
    return sorted(path for path in found if path.startswith(value))


if __name__ == "__main__":
    app.run()
