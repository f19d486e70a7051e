// What the TypeScript servers offer, and how they are told; the same as matter.py.
import { createServer } from 'node:http';

const line = 'The quick brown fox jumps over the lazy dog, "twice".\n';
const given = Object.fromEntries(process.argv.slice(3).map(one => one.split('=')));
const size = Math.floor(Number(given.megabytes ?? 5) * 1e6);

export const uri = 'bench://text';
export const large = 64 * 1024 * 1024;
export const order = {
    transport: process.argv[2],
    json: (given.responses ?? 'json') === 'json',
    tools: Number(given.tools ?? 0),
    large: given.large === '1',
    contents: line.repeat(Math.floor(size / line.length) + 1).slice(0, size),
};

const said = text => ({ content: [{ type: 'text', text }] });

// The two SDKs differ in how a schema is given, and in nothing else here.
export function register(server, z, shape) {
    server.registerTool('echo', { description: 'Give the text back.', inputSchema: shape({ text: z.string() }) },
        async ({ text }) => said(text));
    server.registerTool('add',
        {
            description: 'Add two numbers.',
            inputSchema: shape({ a: z.number().int(), b: z.number().int() }),
            outputSchema: shape({ result: z.number().int() }),
        },
        async ({ a, b }) => ({ ...said(String(a + b)), structuredContent: { result: a + b } }));
    server.registerResource('text', uri, { mimeType: 'text/plain' },
        async () => ({ contents: [{ uri, mimeType: 'text/plain', text: order.contents }] }));
    const many = shape({ text: z.string(), count: z.number().int().optional(), strict: z.boolean().optional() });
    for (let number = 0; number < order.tools; number++) {
        server.registerTool(`extra_${number}`, { description: 'One of many tools.', inputSchema: many },
            async ({ text }) => said(text));
    }
    return server;
}

export function listen(respond) {
    const web = createServer((request, response) => {
        respond(request, response).catch(error => {
            console.error(error);
            response.destroy();
        });
    });
    web.listen(0, '127.0.0.1', () => console.error(`listening on 127.0.0.1:${web.address().port}`));
}

// Sessions by their id: a transport and a server for each, as both SDKs' guides show.
export function sessions(open) {
    const known = new Map();
    return async (request, response) => {
        const id = request.headers['mcp-session-id'];
        const transport = id === undefined ? await open(known) : known.get(id);
        if (transport === undefined) {
            response.writeHead(404).end();
            return;
        }
        await transport.handleRequest(request, response);
    };
}
