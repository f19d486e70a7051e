// Calls a server with the official package for tasks, and prints the outcome of each step as JSON.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const url = process.argv[2];
const version = "2026-07-28";
const clientInfo = { name: "ext-tasks-client", version: "1" };
const clientCapabilities = { elicitation: { form: {} } };
const seen = { status: [], questions: [], outcomes: {} };
let requestId = 0;

// The package frames the requests of tasks. Sending them is the part of the host.
async function rawDispatch(request, options) {
  const name = request.params?.taskId ?? request.params?.name;
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": version,
      "mcp-method": request.method,
      ...(name === undefined ? {} : { "mcp-name": name }),
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: ++requestId, ...request }),
    signal: options?.signal,
  });
  const text = await response.text();
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
  const messages = isStream
    ? text.split("\n").filter((line) => line.startsWith("data:")).map((line) => JSON.parse(line.slice(5)))
    : [JSON.parse(text)];
  const message = messages.find((one) => one.result !== undefined || one.error !== undefined);
  return message.error === undefined
    ? { kind: "result", result: message.result }
    : { kind: "error", error: message.error };
}

function answer(request) {
  seen.questions.push(request.params.message);
  const fields = Object.keys(request.params.requestedSchema.properties);
  return { action: "accept", content: fields.includes("quantity") ? { quantity: 3 } : { [fields[0]]: true } };
}

async function settle(session, name, args) {
  const execution = await session.callTool(name, args);
  const { outcome } = await execution.settle({
    onEvent: (event) => { if (event.type === "task") seen.status.push(event.task.status); },
  });
  return { kind: execution.kind, outcome };
}

async function waitForEnd(session, taskId) {
  for (;;) {
    const { status } = await session.task(taskId).snapshot();
    if (status !== "working") return status;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function connect() {
  const options = { capabilities: clientCapabilities, versionNegotiation: { mode: { pin: version } } };
  const client = new Client(clientInfo, options);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const session = createTaskSessionFromClient(client, {
    endpointId: "test",
    rawDispatch,
    v2RequestFraming: { protocolVersion: version, clientInfo, clientCapabilities },
    onInputRequest: async (request) => answer(request),
  });
  return { session, close: async () => { await session.close(); await client.close(); } };
}

const { session, close } = await connect();

for (const [name, args] of [
  ["add", { a: 2, b: 40 }],
  ["order", { item: "tea" }],
  ["required", { name: "Ada" }],
  ["plain", { name: "Ada" }],
  ["fail", {}],
]) {
  const { kind, outcome } = await settle(session, name, args);
  seen.outcomes[name] = { kind, status: outcome.status, result: resultFromTaskOutcome(outcome) };
}

const execution = await session.callTool("wait_forever", {});
const cancelled = execution.settle();
await execution.cancel();
seen.outcomes.wait_forever = { kind: execution.kind, status: (await cancelled).outcome.status };
// The server answers tasks/cancel before the function of the task has ended.
seen.snapshot = await waitForEnd(session, execution.handle.taskId);

// Another session continues a task with its reference.
const started = await session.callTool("add", { a: 1, b: 1 });
let reference;
await started.handoff((value) => { reference = JSON.stringify(value); });
// When a session closes, the package may cancel a task that was created just before.
await waitForEnd(session, started.handle.taskId);
await close();
const second = await connect();
const resumed = await second.session.resumeTask(JSON.parse(reference));
seen.outcomes.resumed = { result: resultFromTaskOutcome((await resumed.settle()).outcome) };
seen.unknown = await second.session.task("unknown").snapshot().then(() => null, (error) => error.code);
await second.close();
console.log(JSON.stringify(seen));
