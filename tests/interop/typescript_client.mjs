// Uses every resource and tool of a server with the official TypeScript client, and prints the results as JSON.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, version] = process.argv.slice(2);
const client = new Client({ name: "typescript", version: "1" }, { versionNegotiation: { mode: { pin: version } } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

const { resources } = await client.listResources();
const { resourceTemplates } = await client.listResourceTemplates();
const { tools } = await client.listTools();
const uris = [...resources.map((one) => one.uri), ...resourceTemplates.map((one) => one.uriTemplate.replace("{name}", "x"))];
const read = {};
for (const uri of uris) read[uri] = await client.readResource({ uri });
const called = {};
for (const { name } of tools) called[name] = await client.callTool({ name, arguments: { region: "eu west" } });
console.log(JSON.stringify({ read, called }));
await client.close();
