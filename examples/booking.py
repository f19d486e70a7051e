"""A tool that asks the user: it reports progress, asks for a seat, and pays exactly once.

The code is the same for every protocol version. `make demo` runs it in two of them.
"""

import itertools
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail import Context, ElicitationDeclined, Server

app = Server("booking", version="1.0.0", instructions="Books seats on flights.")
receipts = itertools.count(1001)


class Seat(Struct):
    """The form for the user."""

    row: Annotated[int, Meta(ge=1, le=40, description="Row, 1 to 40")]
    place: Annotated[Literal["window", "aisle"], Meta(description="Window or aisle")] = "window"


@app.tool
async def book(flight: Annotated[str, "Such as DY 814"], ctx: Context) -> str:
    """Book a seat on a flight. The user chooses the seat."""
    await ctx.progress(1, total=3, message="holding a seat")
    # On 2026-07-28, the call ends at `elicit`, and the client calls again with the answer. The function then runs again
    # from the top. Use `once` for steps that must not happen twice.
    hold = await ctx.once("hold", lambda: f"H{next(receipts)}")
    try:
        seat = await ctx.elicit(f"Which seat on {flight}?", Seat)
    except ElicitationDeclined:
        return f"Not booked; hold {hold} will lapse."
    await ctx.progress(2, total=3, message="paying")
    receipt = await ctx.once("pay", lambda: f"R{next(receipts)}")
    await ctx.progress(3, total=3, message="done")
    app.add_tool(_cancellation(flight, receipt), name=f"cancel_{receipt}", description=f"Cancel {receipt} on {flight}.")
    return f"Booked {flight}, row {seat.row}, {seat.place}; receipt {receipt}."


def _cancellation(flight: str, receipt: str):
    def cancel() -> str:
        app.remove_tool(f"cancel_{receipt}")
        return f"Cancelled {receipt} on {flight}."

    return cancel


if __name__ == "__main__":
    app.run()
