"""Run several commands, each in a fork of one process. This is faster than a new Python process for each command.

    python command_series.py '[["list", "URL"], ["info", "URL"]]'

After each command, the program writes `SEPARATOR`, the exit code and a newline to stdout, and also to
stderr unless both are a terminal.
"""

import json
import os
import sys
from importlib import import_module

SEPARATOR = "\x1e"


def run_series(commands: list[list[str]]) -> None:
    # Commands import the modules that they use. Importing the largest ones before the forks saves time.
    for name in ("cli.commands.run", "cli.item_page", "terminal.renderer", "transports.http_client.streamable_http"):
        import_module(f"dovetail.{name}")
    from dovetail.cli.main import main

    for words in commands:
        process_id = os.fork()
        if process_id == 0:
            sys.argv = ["dovetail", *words]
            main()
            return
        _, status = os.waitpid(process_id, 0)
        for stream in (sys.stdout,) if sys.stdout.isatty() else (sys.stdout, sys.stderr):
            stream.write(f"{SEPARATOR}{os.waitstatus_to_exitcode(status)}\n")
            stream.flush()


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as with `python -m dovetail`
    run_series(json.loads(sys.argv[1]))
