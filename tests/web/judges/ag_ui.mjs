// Reads server-sent events as the package @ag-ui/client does. The input is {"body": SSE text, "messages": those that the
// client has, "cut": the size of its reads, or null}; the output is what its `HttpAgent` makes of them: {"messages",
// "interrupts", "pending", "usage", "custom", "error"}.
import { HttpAgent } from '@ag-ui/client';

function chunked(body, size) {
  const bytes = new TextEncoder().encode(body);
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size ?? bytes.length) {
        controller.enqueue(bytes.slice(at, at + (size ?? bytes.length)));
      }
      controller.close();
    },
  });
}

export default async function read({ body, messages, cut }) {
  const warnings = [];
  console.warn = message => warnings.push(String(message));
  console.error = () => {};
  const headers = { 'content-type': 'text/event-stream' };
  const fetch = async () => new Response(chunked(body, cut), { headers });
  const agent = new HttpAgent({ url: 'http://judge/', threadId: 'thread', initialMessages: messages, fetch });
  const found = { usage: null, pending: [], custom: 0, outcome: null, error: null };
  const subscriber = {
    onRunFinishedEvent: ({ event, outcome, pendingToolCallIds }) => {
      Object.assign(found, { usage: event.usage ?? null, outcome, pending: pendingToolCallIds ?? [] });
    },
    onRunErrorEvent: ({ event }) => {
      Object.assign(found, { usage: event.usage ?? null, outcome: 'error', error: event.code ?? event.message });
    },
    onCustomEvent: () => {
      found.custom += 1;
    },
  };
  let refused = null;
  try {
    await agent.runAgent({ runId: 'run' }, subscriber);
  } catch (error) {
    refused = String(error.message ?? error);
  }
  return { messages: agent.messages, interrupts: agent.pendingInterrupts, ...found, refused, warnings };
}
