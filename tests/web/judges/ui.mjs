// Reads server-sent events as the browser's package `ai` does. The input is {"body": SSE text, "message": the assistant's
// message to go on with, or null}; the output is {"message", "errors", "types": those of the chunks}.
import { parseJsonEventStream, readUIMessageStream, uiMessageChunkSchema } from 'ai';

export default async function read({ body, message }) {
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
