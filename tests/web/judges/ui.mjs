// Reads server-sent events as the browser's package `ai` does. Each line of the input is {"body": SSE text, "message":
// the assistant's message to go on with, or null}; each line of the output is {"message", "errors", "data", "chunks"}.
import { createInterface } from 'node:readline';
import { parseJsonEventStream, readUIMessageStream, uiMessageChunkSchema } from 'ai';

async function read({ body, message }) {
  const errors = [];
  const types = [];
  const bytes = new Response(body).body;
  const chunks = parseJsonEventStream({ stream: bytes, schema: uiMessageChunkSchema }).pipeThrough(
    new TransformStream({
      transform(part, controller) {
        if (!part.success) throw part.error;
        types.push(part.value.type);
        controller.enqueue(part.value);
      },
    }),
  );
  let last = message;
  const onError = error => errors.push(error.message);
  for await (const state of readUIMessageStream({ message: message ?? undefined, stream: chunks, onError })) last = state;
  return { message: last, errors, types };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await read(JSON.parse(line))));
}
