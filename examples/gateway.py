"""Several servers as one: two in this process and one in another process, each with small changes."""

import sys
from pathlib import Path

import notes
import weather

from dovetail import ArgTransform, Client, Server, Transform
from dovetail.middleware import LogRequests, RateLimit

HERE = Path(__file__).parent

app = Server("gateway", middleware=[LogRequests(), RateLimit(50)])
app.mount(notes.app, "notes", transforms={"erase": Transform(hide=True)})
app.mount(
    weather.app,
    transforms={"forecast": Transform(name="tomorrow", arguments={"days": ArgTransform(value=1)})},
)
app.mount(Client([sys.executable, str(HERE / "booking.py")]), "booking")

if __name__ == "__main__":
    app.run()
