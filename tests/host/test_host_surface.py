"""Test that a host and its servers have only the documented public members."""

from dovetail import Host, Server
from dovetail.host import ManagedServer

HOST_MEMBERS = {
    "add", "answer", "as_server", "asgi", "call", "catalog", "client", "close", "complete", "config_problems",
    "from_config", "get_prompt", "is_open", "list_pending", "list_prompts", "list_resource_templates", "list_skills",
    "list_resources", "list_tools", "load_skill", "on", "open", "policy", "read_resource", "reload", "remove",
    "restart", "run", "serve", "servers", "stats",
}  # fmt: skip
SERVER_MEMBERS = {
    "client", "disable", "identity", "last_error", "name", "restart", "settings", "source", "state", "stop",
}  # fmt: skip


def list_public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_a_host_has_no_base_class_and_shows_its_documented_members() -> None:
    assert Host.__mro__ == (Host, object)
    assert list_public(Host()) == HOST_MEMBERS
    assert all(name in vars(Host) for name in HOST_MEMBERS)


def test_a_managed_server_shows_its_documented_members() -> None:
    host = Host()
    server = host.add("far", Server("far"))
    assert list_public(server) == SERVER_MEMBERS
    assert host.servers == (server,)
    assert ManagedServer.__mro__ == (ManagedServer, object)
