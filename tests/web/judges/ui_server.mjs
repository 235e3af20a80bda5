// Writes streams as a server of the package `ai` does: one JSON line {"name", "body": SSE text, "message": its own fold}.
import { convertArrayToReadableStream, MockLanguageModelV4 } from 'ai/test';
import { createUIMessageStream, createUIMessageStreamResponse, isStepCount, jsonSchema, readUIMessageStream } from 'ai';
import { streamText, tool } from 'ai';

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 2 } };
const finish = unified => ({ type: 'finish', finishReason: { unified, raw: unified }, usage });
const block = (kind, id, ...deltas) => [
  { type: `${kind}-start`, id },
  ...deltas.map(delta => ({ type: `${kind}-delta`, id, delta })),
  { type: `${kind}-end`, id },
];
const call = (toolCallId, toolName, input) => ({ type: 'tool-call', toolCallId, toolName, input: JSON.stringify(input) });
const streamed = (id, toolName, ...deltas) => [
  { type: 'tool-input-start', id, toolName },
  ...deltas.map(delta => ({ type: 'tool-input-delta', id, delta })),
  { type: 'tool-input-end', id },
];
const inputSchema = jsonSchema({ type: 'object', properties: { x: { type: 'number' } } });
const tools = {
  add: tool({ inputSchema, execute: async ({ x }) => x + 1 }),
  count: tool({
    inputSchema,
    async *execute() {
      yield 1;
      yield { two: 2 };
    },
  }),
  fails: tool({
    inputSchema,
    execute: async () => {
      throw new Error('no');
    },
  }),
  pay: tool({ inputSchema, needsApproval: true, execute: async () => 'paid' }),
};

function text(...steps) {
  const doStream = steps.map(parts => ({ stream: convertArrayToReadableStream(parts) }));
  const model = new MockLanguageModelV4({ doStream });
  const result = streamText({ model, prompt: 'Hi', tools, stopWhen: isStepCount(5), onError() {} });
  return result.toUIMessageStream({ sendSources: true });
}

const adds = streamed('a', 'add', '{"x"', ':1}');
const more = [call('b', 'count', { x: 2 }), call('c', 'fails', {})];
const source = { type: 'source', sourceType: 'url', id: 's', url: 'https://example.org', title: 'Example' };
const file = { type: 'file', mediaType: 'image/png', data: { type: 'data', data: 'cG5n' } };
const streams = {
  tools: text(
    [...block('reasoning', 'r', 'H', 'm.'), ...block('text', '0', 'I', ' add.'), ...adds, call('a', 'add', { x: 1 }), ...more, finish('tool-calls')],
    [...block('text', '0', 'Done.'), source, file, finish('stop')],
  ),
  approval: text([call('p', 'pay', { x: 5 }), finish('tool-calls')]),
  error: text([{ type: 'text-start', id: '0' }, { type: 'text-delta', id: '0', delta: 'Hel' }, { type: 'error', error: new Error('torn') }]),
  written: createUIMessageStream({
    execute({ writer }) {
      for (const chunk of block('text', 't', 'Hello')) writer.write(chunk);
      writer.write({ type: 'data-weather', data: { degrees: 20 } });
    },
  }),
};

for (const [name, stream] of Object.entries(streams)) {
  const [ours, theirs] = stream.tee();
  const body = await createUIMessageStreamResponse({ stream: ours }).text();
  let message;
  for await (const state of readUIMessageStream({ stream: theirs, onError() {} })) message = state;
  console.log(JSON.stringify({ name, body, message }));
}
