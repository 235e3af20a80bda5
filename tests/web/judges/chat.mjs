// The clients of an endpoint: the input is {"url": the server's, "act": "resume" (the `Chat` of the package `ai`, whose
// tab is closed and opened again) or "agent" (the `HttpAgent` of `@ag-ui/client`)}. The output is what each act shows.
import { AbstractChat, DefaultChatTransport } from 'ai';
import { HttpAgent } from '@ag-ui/client';

const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 5));
};

function open(api, messages) {
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

async function resume(url) {
  const api = new URL('/api/chat', url).href;
  const shown = [];
  const show = state => shown.push({ status: state.status, texts: texts(state) });
  const first = open(api, []);
  const answer = first.chat.sendMessage({ text: 'A story!' });
  await until(() => textOf(first.state.messages.at(-1)).includes('Once'));
  await first.chat.stop();
  await answer;
  const second = open(api, first.state.messages.slice(0, 1));
  const resumed = second.chat.resumeStream();
  await until(() => second.state.messages.length > 1 && textOf(second.state.messages.at(-1)).includes('Once'));
  show(second.state);
  await fetch(new URL('/go', url), { method: 'POST' });
  await resumed;
  show(second.state);
  const third = open(api, [...second.state.messages]);
  await third.chat.resumeStream();
  show(third.state);
  await third.chat.sendMessage({ text: 'More!' });
  show(third.state);
  return shown;
}

async function agent(url) {
  const agent = new HttpAgent({ url: new URL('/api/chat', url).href, threadId: 'c' });
  const shown = [];
  const show = interrupts =>
    shown.push({
      messages: agent.messages.map(({ role, content }) => [role, content ?? '']),
      interrupts: structuredClone(interrupts),
    });
  agent.addMessage({ id: 'u1', role: 'user', content: 'Pay 5.' });
  await agent.runAgent();
  const interrupts = agent.pendingInterrupts;
  show(interrupts);
  const answer = { interruptId: interrupts[0].id, status: 'resolved', payload: { approved: true } };
  await agent.runAgent({ resume: [answer] });
  show(agent.pendingInterrupts);
  agent.addMessage({ id: 'u2', role: 'user', content: 'Thanks.' });
  await agent.runAgent();
  show(agent.pendingInterrupts);
  return shown;
}

export default ({ url, act }) => ({ resume, agent })[act](url);
