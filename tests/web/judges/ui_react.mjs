// A page with a chat of React's `useChat`, in a browser without a screen: what its user does are clicks on its buttons.
// The argument is the server's URL. After each act it writes a JSON line {"act", "status", "errors", "message": the last
// one, "page": the texts on it}. It has a process of its own, since other clients would take its page for a browser's.
import { JSDOM } from 'jsdom';
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses as approved } from 'ai';

const { window } = new JSDOM('<main></main>', { url: process.argv[2], pretendToBeVisual: true });
Object.assign(globalThis, { window, document: window.document, HTMLElement: window.HTMLElement });
const { createElement: tag, useState } = await import('react');
const { createRoot } = await import('react-dom/client');
const { useChat } = await import('@ai-sdk/react');

let seen;

function Part({ part, chat }) {
  const answer = is_approved => () => chat.addToolApprovalResponse({ id: part.approval.id, approved: is_approved });
  if (part.type === 'text' || part.type === 'reasoning') return tag('p', { className: part.type }, part.text);
  if (part.type !== 'dynamic-tool') return null;
  const shown = tag('p', { className: 'tool' }, `${part.toolName} ${part.state}`);
  if (part.state !== 'approval-requested') return shown;
  return tag('div', {}, shown, ...[true, false].map(is => tag('button', { key: is, id: `approve-${is}`, onClick: answer(is) })));
}

function Page({ id, resume }) {
  const [errors, setErrors] = useState([]);
  const api = new URL('/api/chat', process.argv[2]).href;
  const onError = error => setErrors(errors => [...errors, error.message]);
  const chat = useChat({ id, resume, transport: new DefaultChatTransport({ api }), sendAutomaticallyWhen: approved, onError });
  seen = { status: chat.status, errors, error: chat.error?.message, message: chat.messages.at(-1) };
  const parts = chat.messages.flatMap(message => message.parts.map((part, i) => tag(Part, { part, chat, key: message.id + i })));
  const send = tag('button', { key: 'send', id: 'send', onClick: () => chat.sendMessage({ text: `Do ${id}.` }) });
  return [...parts, send, tag('button', { key: 'stop', id: 'stop', onClick: () => chat.stop() })];
}

const find = selector => document.querySelector(selector);
const texts = () => [...document.querySelectorAll('p')].map(node => node.textContent);
const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 2));
};
const click = async id => {
  await until(() => find(id));
  find(id).click();
};
const hasEnded = () => until(() => ['ready', 'error'].includes(seen.status) && seen.message?.role === 'assistant');
const show = act => console.log(JSON.stringify({ act, ...seen, page: texts() }));

let root;
const open = (id, resume = false) => {
  root?.unmount(); // which leaves the chat as a closed tab does
  seen = undefined;
  root = createRoot(find('main'));
  root.render(tag(Page, { id, resume }));
};

for (const act of ['tools', 'error', 'restart']) {
  open(act);
  await click('#send');
  await hasEnded();
  show(act);
}
for (const act of ['approve-true', 'approve-false']) {
  open(act);
  await click('#send');
  await click(`#${act}`);
  await until(() => seen.status === 'ready' && seen.message.parts.at(-1).type === 'text');
  show(act);
}
open('stop');
await click('#send');
await until(() => texts().includes('abc'));
await click('#stop');
await hasEnded();
show('stop');
open('reload');
await click('#send');
await until(() => texts().includes('abc'));
open('reload', true);
await until(() => seen && texts().includes('abc'));
show('reload');
await fetch(new URL('/finish', process.argv[2]));
await hasEnded();
show('reloaded');
process.exit();
