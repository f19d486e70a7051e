"""A server mounted in a FastAPI application, beside its own pages, and one made of its pages. Needs `fastapi`.

`python examples/in_fastapi.py`, then http://127.0.0.1:8000/notes/mcp and http://127.0.0.1:8000/shelf/mcp.
"""

import argparse

import notes
import uvicorn
from fastapi import FastAPI, HTTPException

from dovetail import Server

web = FastAPI(title="shelf")
BOOKS = {"Emma": 1815, "Dracula": 1897}


@web.get("/books/{title}", operation_id="book")
async def book(title: str) -> dict[str, int]:
    """The year a book came out."""
    if title not in BOOKS:
        raise HTTPException(404, f"no book called {title}")
    return {"year": BOOKS[title]}


web.mount("/notes", notes.app.asgi())  # a server of its own
web.mount("/shelf", Server.from_asgi(web, lifespan=None).asgi())  # the pages above, as tools

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(web, port=parser.parse_args().port)
