"""Run dovetail's gateway in front of one server: `gateway_dovetail.py allow|policy URL|COMMAND...`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from dovetail import CommandTarget, Host, Policy, rule

mode, *target = sys.argv[1:]
options: dict[str, Any] = {"policy": Policy("allow")}
if mode == "policy":
    rules = [
        rule("allow", server="up", tool="echo"),
        rule("deny", tool="delete_*"),
        rule("ask", destructive=True, tool="write_*"),
        rule("deny", server="other"),
    ]
    options = {"policy": Policy("ask", rules)}
with tempfile.TemporaryDirectory() as folder:
    if mode == "policy":
        options["audit_log"] = Path(folder, "audit.jsonl")
    host = Host(**options)
    host.add("up", target[0] if target[0].startswith("http") else CommandTarget(target, inherit_env="all"))
    host.run("http", port=0)
