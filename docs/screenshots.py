"""Make the pictures of the command line in docs/images: run each command at a pseudo-terminal, and draw its output.

python docs/screenshots.py
"""

import fcntl
import html
import io
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).parent / "images"
COLUMNS = 80
TIMEOUT_S = 60.0
THEME = TerminalTheme(
    (22, 27, 34),
    (208, 215, 222),
    [(72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255), (86, 212, 221),
     (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (126, 231, 135), (242, 204, 96), (165, 214, 255), (226, 197, 255),
     (117, 226, 234), (255, 255, 255)],
)  # fmt: skip


@dataclass(frozen=True)
class Screenshot:
    """A picture of a command. Each answer is typed when the text before it appears."""

    name: str
    words: tuple[str, ...]
    answers: tuple[tuple[str, str], ...] = ()
    # Patterns of values that differ from run to run, with the text that replaces them.
    changing: tuple[tuple[str, str], ...] = ()


SCREENSHOTS = (
    Screenshot("list", ("list", "weather.py")),
    Screenshot("info", ("info", "weather.py", "forecast")),
    Screenshot("call", ("call", "weather.py", "forecast", "city=Oslo", "days=2")),
    Screenshot(
        "doctor",
        ("doctor", "weather.py"),
        changing=((r"[\d.]+ ms", "87 ms"), (r"command: \S+", "command: /usr/bin/python3")),
    ),
    Screenshot(
        "question",
        ("call", "booking.py", "book", "flight=DY814"),
        (("row", "99\n"), ("greater than", "3\n"), ("place", "2\n"), ("[Y/n]", "\n")),
        ((r"receipt \S+", "receipt 7f2a"),),
    ),
)


def capture(screenshot: Screenshot) -> str:
    """Run a command at a terminal and return its output, with escape sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("weather.py", "booking.py"):
            shutil.copy(ROOT / "examples" / name, folder)
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        with subprocess.Popen(
            [sys.executable, "-m", "dovetail", *screenshot.words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment | {"HOME": folder, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src")},
            start_new_session=True,
        ) as process:
            os.close(theirs)
            output = _talk(ours, screenshot.answers)
            process.wait(TIMEOUT_S)
    os.close(ours)
    for pattern, replacement in screenshot.changing:
        output = re.sub(pattern, replacement, output)
    return _remove_live_lines(output)


def _talk(terminal: int, answers: tuple[tuple[str, str], ...]) -> str:
    output, position, waiting = "", 0, [*answers]
    deadline = time.monotonic() + TIMEOUT_S
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        output += chunk.decode("utf-8", "replace")
        # A prompt ends with a blank. The text before it is in the part that is new since the last answer.
        if waiting and waiting[0][0] in output[position:] and output.endswith((": ", "] ")):
            position = len(output)
            os.write(terminal, waiting.pop(0)[1].encode())
    return output.replace("\r\n", "\n")


def _remove_live_lines(output: str) -> str:
    """Remove what a display has drawn and removed again."""
    return re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h\r?(?:\x1b\[\d*[AK])*", "", output, flags=re.DOTALL)


def draw(screenshot: Screenshot, output: str) -> str:
    """Return a picture of the output as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    command = Text.assemble(("$ ", "bold green"), " ".join(["dovetail", *screenshot.words]))
    console.print(command, Text.from_ansi(output), sep="\n", soft_wrap=True)
    svg = console.export_svg(title="dovetail", theme=THEME, unique_id=f"dovetail-{screenshot.name}")
    # The fonts of the template are on another host. Each reader has a monospace font.
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


def read_text(svg: str) -> str:
    """Return the text of a picture, without blanks."""
    return re.sub(r"\s", "", html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", svg))))


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    for screenshot in SCREENSHOTS:
        (IMAGES / f"{screenshot.name}.svg").write_text(draw(screenshot, capture(screenshot)), encoding="utf-8")


if __name__ == "__main__":
    main()
