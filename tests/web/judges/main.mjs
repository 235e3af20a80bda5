// Runs the clients of this folder in one process. Each line of the input is {"client": the name of its file, "input"};
// each line of the output is {"output": what the file's function makes of it}, or {"fault": what it throws}.
import { createInterface } from 'node:readline';

console.log = console.info = console.debug = () => {}; // the output belongs to the answers
for await (const line of createInterface({ input: process.stdin })) {
  const { client, input } = JSON.parse(line);
  let answer;
  try {
    const { default: run } = await import(`./${client}.mjs`);
    answer = { output: await run(input) };
  } catch (error) {
    answer = { fault: String(error.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(); // although a client may have kept a connection, or a server run
