// An agent that somebody else wrote: the mock of @copilotkit/aimock. It has no input, and the output is its address.
import { AGUIMock } from '@copilotkit/aimock';

const run = { threadId: 'thread', runId: 'run' };
const chunks = [
  { type: 'RUN_STARTED', ...run },
  { type: 'REASONING_MESSAGE_CHUNK', messageId: 'm0', delta: 'Hm' },
  { type: 'TEXT_MESSAGE_CHUNK', messageId: 'm1', delta: 'In ' },
  { type: 'TEXT_MESSAGE_CHUNK', delta: 'chunks.' },
  { type: 'TOOL_CALL_CHUNK', toolCallId: 'c1', toolCallName: 'add', delta: '{"x"' },
  { type: 'TOOL_CALL_CHUNK', delta: ':1}' },
  { type: 'RUN_FINISHED', ...run, usage: [{ inputTokens: 3, outputTokens: 4, model: 'm' }] },
];
const failure = [{ type: 'RUN_STARTED', ...run }, { type: 'RUN_ERROR', message: 'No.', code: 'rate_limited' }];

const mock = new AGUIMock();
mock.onMessage('greet', 'Hello there.').onReasoning('think', 'They wonder.');
mock.onToolCall('search', 'search', '{"q":"x"}', { result: 'found' }).onToolCall('add', 'add', '{"x":1}');
mock.onRun('chunks', chunks).onRun('fail', failure);

export default () => mock.start();
