"""Run a server in its own process: `python run_server.py <file> <factory> <transport> [<options as JSON>]`."""

import importlib.util
import json
import sys
from pathlib import Path


def main(file: str, factory: str, transport: str, options: str = "{}") -> None:
    spec = importlib.util.spec_from_file_location("served", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["served"] = module
    spec.loader.exec_module(module)
    getattr(module, factory)().run(transport, **json.loads(options))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # as for tests
    main(*sys.argv[1:])
