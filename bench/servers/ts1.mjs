// The TypeScript SDK 1.x, on Node's HTTP server.
import { randomUUID } from 'node:crypto';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as z from 'zod';
import { listen, options, register, sessions } from './workload.mjs';

const make = () => register(new McpServer({ name: 'bench', version: '1' }), z, shape => shape);

async function open(transports) {
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        enableJsonResponse: options.json,
        onsessioninitialized: id => transports.set(id, transport),
    });
    await make().connect(transport);
    return transport;
}

if (options.transport === 'stdio') {
    await make().connect(new StdioServerTransport());
} else {
    listen(sessions(open));
}
