"""Secrets planted in every source that a host reads never appear in its output, logs or files."""

import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Client, Host, MCPError, Policy
from dovetail.host import ServerSettings
from dovetail.host.audit_log import AuditLog
from dovetail.host.config.config_files import ServerConfig, load_config
from dovetail.host.config.secret_lookup import SecretNotFound, SecretResolver
from dovetail.host.consent.grants import Grant, GrantStore
from dovetail.host.policy.policy import PolicyRequest

CANARIES = {
    kind: f"canary-{kind}-5d1f0c"
    for kind in ("env", "input", "keyring", "file", "cmd", "literal", "header", "state", "line", "passed")
}
SERVER = '''
import os, sys
from dovetail import Context, Server
app = Server("leaky")

@app.tool
def tell() -> str:
    """Tells everything it knows."""
    return " ".join([*os.environ.values(), *sys.argv])

@app.tool
def fail(password: str) -> str:
    raise RuntimeError(" ".join([password, *os.environ.values()]))

@app.tool
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("Which one?", str)
    return f"chose {answer} of {list(os.environ.values())}"

app.run("stdio")
'''


def servers(folder: Path) -> dict[str, Any]:
    (folder / "leaky.py").write_text(SERVER, encoding="utf-8")
    (folder / "file.txt").write_text(CANARIES["file"], encoding="utf-8")
    (folder / "say.py").write_text(f"print({CANARIES['cmd']!r})", encoding="utf-8")
    env = {
        "A_TOKEN": "${LEAKY_TOKEN}", "B_KEY": "${input:b}", "C_KEY": "${keyring:c}", "D": "${file:file.txt}",
        "E": f"${{cmd:{sys.executable} {folder / 'say.py'}}}", "F_PASSWORD": CANARIES["literal"],
    }  # fmt: skip
    leaky = {"command": sys.executable, "args": [str(folder / "leaky.py"), "--token", "${LEAKY_TOKEN}"], "env": env}
    url = "http://127.0.0.1:1/mcp?key=${LEAKY_TOKEN}"
    gone = {"command": sys.executable, "args": ["-c", "exit(3)", "--token", "${LEAKY_TOKEN}"], "env": env}
    headers = {"Authorization": f"Bearer {CANARIES['header']}", "X-Key": "${input:b}"}
    bad = {"command": ["x", CANARIES["literal"]], "env": [CANARIES["literal"]], "headers": CANARIES["literal"]}
    odd = {"command": "x", "env": {"P": CANARIES["literal"]}, "x-dovetail": {"trusted": CANARIES["literal"]}}
    return {"leaky": leaky, "gone": gone, "far": {"url": url, "headers": headers}, "bad": bad, "odd": odd}


async def used(client: Client, journal: AuditLog, said: list[str]) -> None:
    """Everything that can be done with a server, kept in the journal."""
    for tool, arguments in (("tell", {}), ("fail", {"password": CANARIES["literal"]}), ("ask", {}), ("nothing", {})):
        try:
            result = await client.call_tool(tool, arguments)
            journal.write("call", client.name, tool=tool, arguments=arguments, error=str(result.content))
        except MCPError as exc:
            journal.write("call", client.name, tool=tool, arguments=arguments, error=f"{exc}\n{exc.stderr}")
            said.append("".join(traceback.format_exception(exc)))


async def test_no_secret_is_in_what_a_host_says_logs_or_keeps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers(tmp_path)}), encoding="utf-8")
    secrets = SecretResolver(
        {"LEAKY_TOKEN": CANARIES["env"]},
        {"b": CANARIES["input"]},
        keyring=lambda _, name: {"c": CANARIES["keyring"]}.get(name),
    )
    entries, problems = load_config(path, level="user")
    found: dict[str, ServerConfig] = {one.name: one for one in entries}
    assert found.keys() == {"leaky", "gone", "far"}
    said = [repr(entries), repr(secrets), repr(problems), *(str(one.references) for one in entries)]
    with pytest.raises(SecretNotFound) as missing:
        found["leaky"].to_target({"LEAKY_TOKEN": CANARIES["env"]})
    said.append("".join(traceback.format_exception(missing.value)))
    grants = GrantStore(tmp_path / "grants.json")
    with AuditLog(tmp_path / "journal.jsonl", secrets=secrets, include_values=True) as journal:
        for entry in entries:
            grants.add(
                Grant.from_request(
                    PolicyRequest(server=entry.name, tool="tell", server_identity=entry.identity), "f", scope="always"
                )
            )
            target = entry.to_target(secrets=secrets)
            client = Client(target, name=entry.name, elicitation_handler=lambda _: {"value": "x"})
            said.append(repr(client))
            try:
                async with client:
                    await used(client, journal, said)
            except MCPError as exc:
                journal.write("server.state", entry.name, state="failed", reason=str(exc))
                said.append("".join(traceback.format_exception(exc)))
        journal.write("pending", "leaky", requestState=CANARIES["state"])
    outputs = {
        "what it says": "\n".join(said),
        "the log": caplog.text + repr([one.__dict__ for one in caplog.records]),
        "the journal": (tmp_path / "journal.jsonl").read_text(encoding="utf-8"),
        "the grants": (tmp_path / "grants.json").read_text(encoding="utf-8"),
    }
    hits = [(where, kind) for where, text in outputs.items() for kind, value in CANARIES.items() if value in text]
    record_measurement(f"secrets found in {len(outputs)} outputs, {len(CANARIES)} planted", len(hits), "")
    assert not hits
    # The other way round: they were there to be found, and what is no secret is still told.
    assert outputs["the journal"].count("***") > 10
    assert "chose x of" in outputs["the journal"]
    assert "exit code 3" in outputs["the journal"]


async def test_no_secret_is_in_what_a_host_of_files_says_logs_or_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / ".env").write_text(f"LINE={CANARIES['line']}\n", encoding="utf-8")
    given = {name: one for name, one in servers(tmp_path).items() if name in ("leaky", "gone", "far")}
    given["leaky"] |= {"envFile": str(tmp_path / ".env"), "env_vars": ["PASSED_ON"]}
    given["nowhere"] = {"command": "/nowhere/${LEAKY_TOKEN}"}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": given}), encoding="utf-8")
    secrets = SecretResolver(
        {"LEAKY_TOKEN": CANARIES["env"], "PASSED_ON": CANARIES["passed"]},
        {"b": CANARIES["input"]},
        keyring=lambda _, name: {"c": CANARIES["keyring"]}.get(name),
    )
    said: list[str] = []
    raw: list[str] = []

    def heard(event: Any) -> None:
        said.append(repr((event.message, event.reason)))

    defaults = ServerSettings(restart_delay=0.0, max_restart_delay=0.0, max_restarts=100)
    for journal in (tmp_path / "names.jsonl", AuditLog(tmp_path / "values.jsonl", include_values=True)):
        async with Host.from_config(
            path, audit_log=journal, policy=Policy("allow"), secrets=secrets, defaults=defaults
        ) as host:
            host.on("*", heard)
            calls = [
                ("leaky.tell", {}),
                ("leaky.fail", {"password": CANARIES["literal"]}),
                *((f"{name}.x", {}) for name in given),
            ]
            for name, arguments in calls:
                try:
                    raw.append(str((await host.call(name, arguments)).content))
                except MCPError as exc:
                    said.append("".join(traceback.format_exception(exc)))
            said += [repr(host.servers), *(str(one.last_error) for one in host.servers)]
    outputs = {
        "what it says": "\n".join(said),
        "the log": caplog.text + repr([one.__dict__ for one in caplog.records]),
        "the journals": "".join((tmp_path / f"{one}.jsonl").read_text(encoding="utf-8") for one in ("names", "values")),
    }
    hits = [(where, kind) for where, text in outputs.items() for kind, value in CANARIES.items() if value in text]
    record_measurement(f"secrets found in {len(outputs)} outputs of a host, {len(CANARIES)} planted", len(hits), "")
    assert not hits
    assert CANARIES["line"] in raw[0]
    assert CANARIES["passed"] in raw[0]
    assert "/nowhere/***" in outputs["what it says"]
    assert "exit code 3" in outputs["the journals"]
