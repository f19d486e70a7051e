"""Test that public classes have no base class of ours and define every public method in one file."""

import inspect
import sys

import pytest

from dovetail import Server

DOCUMENTED_MEMBERS = {
    Server: """
        name version instructions
        tool add_tool remove_tool resource add_resource remove_resource prompt add_prompt remove_prompt
        skill add_skill add_skills
        completion include enable disable restrict middleware on_notification route mount from_openapi from_asgi
        notify_tools_changed notify_resources_changed notify_prompts_changed notify_resource_updated
        notify_elicitation_complete
        run serve asgi open_connection start stop lint stats
    """,
}
INSTANCES = {Server: Server("any")}


@pytest.mark.parametrize("public_class", DOCUMENTED_MEMBERS)
def test_a_public_class_has_no_base_class(public_class: type) -> None:
    assert public_class.__mro__ == (public_class, object)


@pytest.mark.parametrize("public_class", DOCUMENTED_MEMBERS)
def test_an_instance_shows_only_documented_members(public_class: type) -> None:
    shown = {name for name in dir(INSTANCES[public_class]) if not name.startswith("_")}
    assert shown == set(DOCUMENTED_MEMBERS[public_class].split())


@pytest.mark.parametrize("public_class", DOCUMENTED_MEMBERS)
def test_every_public_method_is_defined_in_the_file_of_its_class(public_class: type) -> None:
    file = sys.modules[public_class.__module__].__file__
    for name, member in vars(public_class).items():
        function = getattr(member, "__func__", member.fget if isinstance(member, property) else member)
        if not name.startswith("_"):
            assert inspect.getsourcefile(function) == file, name
