// The command line and the contents of the TypeScript servers, as in workload.py.
import { createServer } from 'node:http';

const line = 'The quick brown fox jumps over the lazy dog, "twice".\n';
const values = Object.fromEntries(process.argv.slice(3).map(argument => argument.split('=')));
const size = Math.floor(Number(values.megabytes ?? 5) * 1e6);

export const uri = 'bench://text';
export const large = 64 * 1024 * 1024;
export const options = {
    transport: process.argv[2],
    json: (values.responses ?? 'json') === 'json',
    tools: Number(values.tools ?? 0),
    large: values.large === '1',
    contents: line.repeat(Math.floor(size / line.length) + 1).slice(0, size),
};

const textResult = text => ({ content: [{ type: 'text', text }] });

// The two SDKs differ only in the form of a schema.
export function register(server, z, shape) {
    server.registerTool('echo', { description: 'Give the text back.', inputSchema: shape({ text: z.string() }) },
        async ({ text }) => textResult(text));
    server.registerTool('add',
        {
            description: 'Add two numbers.',
            inputSchema: shape({ a: z.number().int(), b: z.number().int() }),
            outputSchema: shape({ result: z.number().int() }),
        },
        async ({ a, b }) => ({ ...textResult(String(a + b)), structuredContent: { result: a + b } }));
    server.registerResource('text', uri, { mimeType: 'text/plain' },
        async () => ({ contents: [{ uri, mimeType: 'text/plain', text: options.contents }] }));
    const many = shape({ text: z.string(), count: z.number().int().optional(), strict: z.boolean().optional() });
    for (let number = 0; number < options.tools; number++) {
        server.registerTool(`extra_${number}`, { description: 'One of many tools.', inputSchema: many },
            async ({ text }) => textResult(text));
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

// Each session has a transport and a server, as in the guides of both SDKs.
export function sessions(open) {
    const transports = new Map();
    return async (request, response) => {
        const id = request.headers['mcp-session-id'];
        const transport = id === undefined ? await open(transports) : transports.get(id);
        if (transport === undefined) {
            response.writeHead(404).end();
            return;
        }
        await transport.handleRequest(request, response);
    };
}
