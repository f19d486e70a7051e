// The TypeScript SDK 2.x, on node's own HTTP server, with the guards its guide puts in front.
import { randomUUID } from 'node:crypto';
import {
    localhostHostValidation, localhostOriginValidation, NodeStreamableHTTPServerTransport, toNodeHandler,
} from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';
import { large, listen, order, register, sessions } from './workload.mjs';

const make = () => register(new McpServer({ name: 'bench', version: '1' }), z, shape => z.object(shape));
const limits = order.large ? { maxRequestBodySize: large } : {};

async function open(known) {
    const transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        enableJsonResponse: order.json,
        onsessioninitialized: id => known.set(id, transport),
        ...limits,
    });
    await make().connect(transport);
    return transport;
}

if (order.transport === 'stdio') {
    serveStdio(make);
} else {
    const hostOf = localhostHostValidation();
    const originOf = localhostOriginValidation();
    const modern = toNodeHandler(
        createMcpHandler(make, { legacy: 'reject', responseMode: order.json ? 'json' : 'sse', ...limits }), limits);
    const handshake = sessions(open);
    listen(async (request, response) => {
        if (!hostOf(request, response) || !originOf(request, response)) return;
        const isModern = request.headers['mcp-protocol-version'] === '2026-07-28';
        await (isModern ? modern : handshake)(request, response);
    });
}
