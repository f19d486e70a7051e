"""The server for the official conformance suite, with all tools, resources and prompts that it looks for.

It is an ordinary server. The suite defines the names and texts, and no function depends on the era. The environment
variable CONFORMANCE_PROTOCOL_VERSION names the only version to support, and CONFORMANCE_TASK_STORE the file for tasks.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dovetail import (
    PROTOCOL_VERSIONS,
    AudioContent,
    Context,
    Elicit,
    EmbeddedResource,
    ImageContent,
    InputRequired,
    ListRoots,
    ResourceContents,
    Sample,
    Server,
    TextContent,
    ToolError,
)
from dovetail.errors import InternalError
from dovetail.extensions import TaskConfig, TaskOptions

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
PAUSE = 0.05
VERSION = os.environ.get("CONFORMANCE_PROTOCOL_VERSION")


class Name(Struct):
    name: str


class Confirmation(Struct):
    confirm: bool


app = Server(
    "conformance",
    version="1.0.0",
    instructions="Answers the official conformance suite.",
    protocol_versions=[VERSION] if VERSION else PROTOCOL_VERSIONS,
    tasks=TaskOptions(store=os.environ.get("CONFORMANCE_TASK_STORE", ":memory:")),
)
app.add_skills(Path(__file__).parent / "skills")


@app.tool
def test_simple_text() -> str:
    """Return one text block."""
    return "This is a simple text response for testing."


@app.tool
def test_image_content() -> ImageContent:
    """Return one image block."""
    return ImageContent(data=PNG, mime_type="image/png")


@app.tool
def test_audio_content() -> AudioContent:
    """Return one audio block."""
    return AudioContent(data=WAV, mime_type="audio/wav")


@app.tool
def test_embedded_resource() -> EmbeddedResource:
    """Return a resource, embedded."""
    return _embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@app.tool
def test_multiple_content_types() -> list[str | ImageContent | EmbeddedResource]:
    """Return text, an image and a resource together."""
    return [
        "Multiple content types test:",
        ImageContent(data=PNG, mime_type="image/png"),
        _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ]


@app.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three messages while working."""
    await ctx.info("Tool execution started")
    await asyncio.sleep(PAUSE)
    await ctx.info("Tool processing data")
    await asyncio.sleep(PAUSE)
    await ctx.info("Tool execution completed")
    return "Tool with logging executed successfully"


@app.tool
def test_error_handling() -> str:
    """Always fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@app.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    await ctx.progress(0, total=100)
    await asyncio.sleep(PAUSE)
    await ctx.progress(50, total=100)
    await asyncio.sleep(PAUSE)
    await ctx.progress(100, total=100)
    return "Tool with progress executed successfully"


@app.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model.

    Args:
        prompt: What the model is asked.
    """
    answer = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {_text(answer.content)}"


class Contact(Struct):
    """Who the user is."""

    username: Annotated[str, Meta(description="User's response")]
    email: Annotated[str, Meta(description="User's email address")]


@app.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the user for a name and an address.

    Args:
        message: What the user is asked.
    """
    contact = await ctx.elicit(message, Contact)
    return f"User response: {contact.username} <{contact.email}>"


class Defaults(Struct):
    """A form with a default of every primitive type."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@app.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with defaults filled in."""
    form = await ctx.elicit("Please review and update the form fields with defaults", Defaults)
    return f"Elicitation completed: {form}"


ENUMS = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [
                {"const": "value1", "title": "First Option"},
                {"const": "value2", "title": "Second Option"},
                {"const": "value3", "title": "Third Option"},
            ],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": "value1", "title": "First Choice"},
                    {"const": "value2", "title": "Second Choice"},
                    {"const": "value3", "title": "Third Choice"},
                ]
            },
        },
    },
}


@app.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask with choices written in all five ways."""
    form = await ctx.elicit("Please select options from the enum fields", ENUMS)
    return f"Elicitation completed: {form}"


@app.tool
async def test_reconnection(ctx: Context) -> str:
    """Let go of the connection in the middle of the call."""
    await ctx.close_sse_stream(retry_ms=100)
    await asyncio.sleep(4 * PAUSE)
    return "Reconnection test completed successfully"


ADDRESS_BOOK = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@app.tool(input_schema=ADDRESS_BOOK)
def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Publish a schema that uses what JSON Schema 2020-12 has to offer."""
    return f"JSON Schema 2020-12 tool called with: {sorted(arguments)}"


@app.tool
def test_x_mcp_header(region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})] = "") -> str:
    """Take an argument that also travels as an HTTP header."""
    return f"Region: {region or 'unspecified'}"


@app.tool
def test_missing_capability(ctx: Context) -> str:
    """Work only for clients that offer sampling."""
    ctx.require_capabilities(sampling=True)
    return "The client offers sampling."


@app.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Report progress, then ask the user to confirm."""
    await ctx.progress(1, total=2)
    confirmed = await ctx.elicit("Do you confirm?", bool)
    return f"Confirmed: {confirmed}"


@app.tool
async def test_logging_tool(ctx: Context) -> str:
    """Log one message, if the caller wants to hear it."""
    await ctx.info("One message of the logging tool")
    return "Logged."


@app.tool
def test_trigger_tool_change() -> str:
    """Announce that the list of tools changed."""
    app.notify_tools_changed()
    return "Tool list change announced."


@app.tool
def test_trigger_prompt_change() -> str:
    """Announce that the list of prompts changed."""
    app.notify_prompts_changed()
    return "Prompt list change announced."


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
CONFIRMATION = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
SETTING = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}


@app.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Greet the user by name."""
    answer = await ctx.elicit("What is your name?", NAME, key="user_name")
    return f"Hello, {answer['name']}!"


@app.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask the client's model one question."""
    answer = await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")
    return f"LLM response: {_text(answer.content)}"


@app.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Tell which roots the client offers."""
    roots = await ctx.list_roots(key="client_roots")
    return f"Roots: {', '.join(root.uri for root in roots)}"


@app.tool
def test_input_required_result_request_state(ctx: Context) -> str | InputRequired:
    """Drive the rounds by hand and insist on the state."""
    if ctx.request_state == "confirming" and "confirm" in ctx.input_responses:
        return "Confirmed: state-ok"
    return InputRequired({"confirm": Elicit("Please confirm", CONFIRMATION)}, request_state="confirming")


@app.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask for a name, a greeting and the roots in one round."""
    answers = await ctx.request_inputs(
        user_name=Elicit("What is your name?", NAME),
        greeting=Sample("Generate a greeting", max_tokens=50),
        client_roots=ListRoots(),
    )
    greeting = _text(answers["greeting"].content)
    return f"{greeting} {answers['user_name']['name']}, {len(answers['client_roots'])} roots"


@app.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask one question after the other."""
    first = await ctx.elicit("Step 1: What is your name?", NAME, key="step1")
    second = await ctx.elicit("Step 2: What is your favorite color?", COLOR, key="step2")
    return f"{first['name']} likes {second['color']}."


@app.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Confirm, with a state nobody may touch."""
    await ctx.elicit("Please confirm", CONFIRMATION, key="confirm")
    return "Confirmed with an intact state."


@app.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask only what the client can answer."""
    offered = ctx.client_capabilities
    questions = {
        "user_name": offered.elicitation and Elicit("What is your name?", NAME),
        "greeting": offered.sampling and Sample("Generate a greeting", max_tokens=50),
        "client_roots": offered.roots and ListRoots(),
    }
    answers = await ctx.request_inputs(**{key: question for key, question in questions.items() if question})
    return f"Answered: {', '.join(answers)}"


@app.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@app.resource("test://static-binary", mime_type="image/png")
def static_binary() -> ResourceContents:
    """An image that never changes."""
    return ResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG)


@app.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A text one can subscribe to."""
    return "Watched resource content"


@app.resource("test://template/{id}/data", mime_type="application/json")
def template_resource(id: str) -> dict[str, Any]:
    """A record of its own for every id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@app.prompt
def test_simple_prompt() -> str:
    """A prompt without blanks."""
    return "This is a simple prompt for testing."


@app.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two blanks.

    Args:
        arg1: The first blank.
        arg2: The second blank.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@app.completion("test_prompt_with_arguments", "arg1")
def complete_arg1(value: str) -> list[str]:
    """Values that begin as typed."""
    return [name for name in ("paris", "park", "party", "test", "testing") if name.startswith(value)]


@app.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[EmbeddedResource | str]:
    """A prompt that carries a resource.

    Args:
        resourceUri: The address the resource gets.
    """
    return [
        _embedded(resourceUri, "text/plain", "Embedded resource content for testing."),
        "Please process the embedded resource above.",
    ]


@app.prompt
def test_prompt_with_image() -> list[ImageContent | str]:
    """A prompt that carries an image."""
    return [ImageContent(data=PNG, mime_type="image/png"), "Please analyze the image above."]


@app.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it is written."""
    answer = await ctx.elicit("What context should the prompt use?", SETTING, key="user_context")
    return f"Use this context: {answer['context']}"


# The tools of the tasks extension.


@app.tool
def greet(name: str) -> str:
    """Greet someone. It never becomes a task."""
    return f"Hello, {name}!"


@app.tool(task=True)
async def slow_compute(seconds: float = 2.0, label: str = "") -> str:
    """Work for some seconds."""
    await asyncio.sleep(seconds)
    return f"Computed {label} for {seconds:g} seconds"


@app.tool(task="required")
async def failing_job() -> str:
    """Fail with an error that the model can read."""
    raise ToolError("The job failed.")


@app.tool(task=True)
async def protocol_error_job() -> str:
    """Fail with an error of the protocol."""
    raise InternalError("The job cannot run.")


@app.tool(task=True)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Ask the user before deleting a file."""
    answer = await ctx.elicit(f"Delete {filename}?", Confirmation)
    return f"Deleted {filename}" if answer.confirm else f"Kept {filename}"


@app.tool(task=True)
async def multi_input(ctx: Context) -> str:
    """Ask two questions at once."""
    answers = await ctx.request_inputs(name=Elicit("Name?", Name), confirm=Elicit("Continue?", Confirmation))
    return f"{answers['name'].name}: {answers['confirm'].confirm}"


@app.tool(task=TaskConfig(required=True, after=PAUSE))
async def test_tool_with_task(ctx: Context) -> str:
    """Ask for a name, and then greet slowly."""
    answer = await ctx.elicit("What is your name?", Name)
    await asyncio.sleep(10 * PAUSE)
    return f"Hello, {answer.name}!"


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=ResourceContents(uri=uri, mime_type=mime_type, text=text))


def _text(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    return "".join(block.text for block in blocks if isinstance(block, TextContent))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the conformance fixture.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    app.run("http", host="127.0.0.1", port=arguments.port, path="/mcp", workers=arguments.workers)
