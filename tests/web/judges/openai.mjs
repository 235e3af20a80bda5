// Asks a server as OpenAI's own package does. The argument is its URL; each line of the input is {"do": what to do,
// "body": of the request, "key"}; each line of the output is the completion, or {"error": {"class", "status", ...}}.
import { createInterface } from 'node:readline';
import OpenAI from 'openai';

const baseURL = process.argv[2];

const doing = {
  create: (sdk, body) => sdk.chat.completions.create(body),
  stream: (sdk, body) => sdk.chat.completions.stream(body).finalChatCompletion(),
  models: async sdk => (await sdk.models.list()).data,
  async tools(sdk, body) {
    const place = { name: 'place', parameters: { type: 'object', properties: {} }, function: () => '59.9 N', parse: JSON.parse };
    const runner = sdk.chat.completions.runTools({ ...body, tools: [{ type: 'function', function: place }] });
    await runner.done();
    return { content: await runner.finalContent(), roles: runner.messages.map(message => message.role) };
  },
  async leave(sdk, body) {
    const stream = await sdk.chat.completions.create({ ...body, stream: true });
    for await (const chunk of stream) return { left: chunk.choices[0].delta.content };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, body, key } = JSON.parse(line);
  const sdk = new OpenAI({ baseURL, apiKey: key ?? 'key', maxRetries: 0 });
  try {
    console.log(JSON.stringify(await doing[name](sdk, body)));
  } catch (error) {
    const { status, code, type, param, message } = error;
    console.log(JSON.stringify({ error: { class: error.constructor.name, status, code, type, param, message } }));
  }
}
