// The TypeScript SDK 2.x, on Node's HTTP server, with the Host and Origin checks of its guide.
import { randomUUID } from 'node:crypto';
import {
    localhostHostValidation, localhostOriginValidation, NodeStreamableHTTPServerTransport, toNodeHandler,
} from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';
import { large, listen, options, register, sessions } from './workload.mjs';

const make = () => register(new McpServer({ name: 'bench', version: '1' }), z, shape => z.object(shape));
const limits = options.large ? { maxRequestBodySize: large } : {};

async function open(transports) {
    const transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        enableJsonResponse: options.json,
        onsessioninitialized: id => transports.set(id, transport),
        ...limits,
    });
    await make().connect(transport);
    return transport;
}

if (options.transport === 'stdio') {
    serveStdio(make);
} else {
    const hostOf = localhostHostValidation();
    const originOf = localhostOriginValidation();
    const stateless = toNodeHandler(
        createMcpHandler(make, { legacy: 'reject', responseMode: options.json ? 'json' : 'sse', ...limits }), limits);
    const handshake = sessions(open);
    listen(async (request, response) => {
        if (!hostOf(request, response) || !originOf(request, response)) return;
        const isStateless = request.headers['mcp-protocol-version'] === '2026-07-28';
        await (isStateless ? stateless : handshake)(request, response);
    });
}
