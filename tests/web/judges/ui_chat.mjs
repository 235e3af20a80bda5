// A browser's chat without a browser: the `Chat` of the package `ai` talks to the endpoint whose URL is the input. The
// output is what each of its four acts shows: {"status", "error", "message": the last one}.
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses as approved } from 'ai';

const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 5));
};

export default async function play(api) {
  const state = {
    status: 'ready',
    error: undefined,
    messages: [],
    pushMessage: message => state.messages.push(message),
    popMessage: () => state.messages.pop(),
    replaceMessage: (index, message) => (state.messages[index] = message),
    snapshot: thing => structuredClone(thing),
  };
  class Chat extends AbstractChat {
    constructor() {
      super({ state, transport: new DefaultChatTransport({ api }), sendAutomaticallyWhen: approved });
    }
  }
  const last = () => state.messages.at(-1);
  const shown = [];
  const show = () => shown.push(structuredClone({ status: state.status, error: state.error?.message, message: last() }));

  const chat = new Chat();
  await chat.sendMessage({ text: 'Pay 5.' });
  show();
  await chat.addToolApprovalResponse({ id: last().parts.at(-1).approval.id, approved: true });
  await until(() => state.status === 'ready' && last().parts.at(-1).type === 'text');
  show();
  const answer = chat.sendMessage({ text: 'Go on.' });
  await until(() => last().parts.at(-1)?.text?.includes('word'));
  await chat.stop();
  await answer;
  show();
  await chat.sendMessage({ text: 'Again.' });
  show();
  return shown;
}
