"""Two servers in a FastAPI application: a mounted one, and one made from its routes. Needs `fastapi` and `uvicorn`.

Run `python examples/in_fastapi.py`, then use http://127.0.0.1:8000/notes/mcp and http://127.0.0.1:8000/shelf/mcp.
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
    """Get the year in which a book was published."""
    if title not in BOOKS:
        raise HTTPException(404, f"no book called {title}")
    return {"year": BOOKS[title]}


web.mount("/notes", notes.app.asgi())  # a separate server
web.mount("/shelf", Server.from_asgi(web, lifespan=None).asgi())  # the routes above, as tools

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(web, port=parser.parse_args().port)
