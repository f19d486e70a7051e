"""Exit codes of server processes."""

from typing import Final

STARTUP_FAILED: Final = 3  # uvicorn exits with this code, too.
CALLS_CUT: Final = 75  # The process ended before its calls did. This is EX_TEMPFAIL in sysexits.h.
