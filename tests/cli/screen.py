"""A terminal screen in memory: it shows what a user would see of the output of a command."""

import re
import unicodedata

_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Screen:
    """Executes the escape sequences that the commands use, and raises AssertionError for any other one.

    `wrapped` contains each row that was too long, so that the terminal continued it at the left edge.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.wrapped: list[str] = []
        self.styles: set[str] = set()  # the parameters of all sequences for colours
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def rows(self) -> list[str]:
        """The rows of the screen, without blanks at their ends."""
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> str:
        return "\n".join(self.rows).strip("\n")

    def feed(self, output: str) -> "Screen":
        position = 0
        while position < len(output):
            if match := _SEQUENCE.match(output, position):
                self._execute(match[1], match[2], match[3])
                position = match.end()
            else:
                self._write(output[position])
                position += 1
        return self

    def _execute(self, mark: str, parameters: str, command: str) -> None:
        match command:
            case "m":
                self.styles.add(parameters)
            case "A":
                self._row = max(0, self._row - int(parameters or 1))
            case "K":
                del self._rows[self._row][self._column if parameters in ("", "0") else 0 :]
            case "J" if parameters in ("", "0"):
                del self._rows[self._row][self._column :]
                del self._rows[self._row + 1 :]
            case "h" | "l" if mark and parameters == "25":  # shows or hides the cursor
                pass
            case _:
                raise AssertionError(f"unexpected sequence {command!r} with {parameters!r}")

    def _write(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._move_down()
        else:
            assert unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp"), f"unescaped {char!r}"
            cells = [char, ""] if unicodedata.east_asian_width(char) in "WF" else [char]
            if self._column + len(cells) > self.columns:
                self.wrapped.append("".join(self._rows[self._row]))
                self._move_down()
                self._column = 0
            row = self._rows[self._row]
            row += [" "] * (self._column - len(row))
            row[self._column : self._column + len(cells)] = cells
            self._column += len(cells)

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])
