// Asks a server as OpenAI's own package does. The input is {"url", "do": what to do, "body": of the request, "key"}; the
// output is the completion, or {"error": {"class", "status", ...}}.
import OpenAI from 'openai';

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

export default async function ask({ url, do: name, body, key }) {
  const sdk = new OpenAI({ baseURL: url, apiKey: key ?? 'key', maxRetries: 0 });
  try {
    return await doing[name](sdk, body);
  } catch (error) {
    const { status, code, type, param, message } = error;
    return { error: { class: error.constructor.name, status, code, type, param, message } };
  }
}
