"""The smallest server: one function. Run it with `python examples/hello.py`, or configure it in a host."""

from dovetail import Server

app = Server("hello")


@app.tool
def greet(name: str) -> str:
    """Greet someone by name."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    app.run()
