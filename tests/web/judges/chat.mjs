// The clients of an endpoint: the arguments are the server's URL and "resume" (the `Chat` of the package `ai`, whose tab
// is closed and opened again) or "agent" (the `HttpAgent` of `@ag-ui/client`). Each act writes a JSON line.
import { AbstractChat, DefaultChatTransport } from 'ai';
import { HttpAgent } from '@ag-ui/client';

const api = new URL('/api/chat', process.argv[2]).href;
const show = line => console.log(JSON.stringify(line));
const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 5));
};

function open(messages) {
  const state = { status: 'ready', error: undefined, messages };
  state.pushMessage = message => state.messages.push(message);
  state.popMessage = () => state.messages.pop();
  state.replaceMessage = (index, message) => (state.messages[index] = message);
  state.snapshot = thing => structuredClone(thing);
  class Chat extends AbstractChat {
    constructor() {
      super({ id: 'c/1', state, transport: new DefaultChatTransport({ api }) });
    }
  }
  return { chat: new Chat(), state };
}
const textOf = message => (message?.parts ?? []).map(part => part.text ?? '').join('');
const texts = state => state.messages.map(textOf);

async function resume() {
  const first = open([]);
  const answer = first.chat.sendMessage({ text: 'A story!' });
  await until(() => textOf(first.state.messages.at(-1)).includes('Once'));
  await first.chat.stop();
  await answer;
  const second = open(first.state.messages.slice(0, 1));
  const resumed = second.chat.resumeStream();
  await until(() => second.state.messages.length > 1 && textOf(second.state.messages.at(-1)).includes('Once'));
  show({ status: second.state.status, texts: texts(second.state) });
  await fetch(new URL('/go', process.argv[2]), { method: 'POST' });
  await resumed;
  show({ status: second.state.status, texts: texts(second.state) });
  const third = open([...second.state.messages]);
  await third.chat.resumeStream();
  show({ status: third.state.status, texts: texts(third.state) });
  await third.chat.sendMessage({ text: 'More!' });
  show({ status: third.state.status, texts: texts(third.state) });
}

async function agent() {
  const agent = new HttpAgent({ url: api, threadId: 'c' });
  const line = () => ({ messages: agent.messages.map(({ role, content }) => [role, content ?? '']) });
  agent.addMessage({ id: 'u1', role: 'user', content: 'Pay 5.' });
  await agent.runAgent();
  const interrupts = agent.pendingInterrupts;
  show({ ...line(), interrupts });
  const answer = { interruptId: interrupts[0].id, status: 'resolved', payload: { approved: true } };
  await agent.runAgent({ resume: [answer] });
  show({ ...line(), interrupts: agent.pendingInterrupts });
  agent.addMessage({ id: 'u2', role: 'user', content: 'Thanks.' });
  await agent.runAgent();
  show({ ...line(), interrupts: agent.pendingInterrupts });
}

await { resume, agent }[process.argv[3]]();
process.exit();
