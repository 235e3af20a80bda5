// The events of a turn as elements: texts, thoughts, and a card for each tool call.

import { Markdown, add } from "./markdown.js"

// The place where a chat draws its events. An agent draws its events inside its tool's card.
export class Scope {
  constructor(box, say = () => {}) {
    this.box = box
    this.say = say  // called with each finished block of the answer, and with what happens to tools
    this.step = null  // the box of the running step
    this.answer = null  // the last text
    this.blocks = new Map()
    this.cards = new Map()
  }

  current = () => (this.step ??= add(this.box, "div", "step"))

  block(id, make) {
    if (!this.blocks.has(id)) this.blocks.set(id, make(this.current()))
    return this.blocks.get(id)
  }

  text(id) {
    const say = (block) => this.say(block.dataset.type === "code" ? "A block of code." : block.innerText)
    return (this.answer = this.block(id, (box) => new Markdown(add(box, "div", "text markdown"), say)))
  }

  thoughts(id) {
    return this.block(`thoughts ${id}`, (box) => new Thoughts(add(box, "details", "thinking")))
  }

  // Finish the texts, because a tool or the end follows.
  end() {
    for (const block of this.blocks.values()) block.end()
    this.blocks.clear()
  }

  // The id of an agent's call begins with the id of the agent's own tool call: "c1/c2".
  find([id, ...rest]) {
    const card = this.cards.get(id)
    return rest.length && card ? card.scope.find(rest) : card
  }

  feed(event) {
    if (Object.hasOwn(draw, event.type)) draw[event.type](this, event)
  }
}

// A function for each event of rxllm's own protocol that the page draws. Other events are ignored.
const draw = {
  message_started: (scope) => scope.end(),
  text_delta: (scope, { id, delta }) => scope.text(id).append(delta),
  thinking_delta: (scope, { id, delta }) => scope.thoughts(id).append(delta),
  thinking_completed: (scope, { id }) => scope.thoughts(id).end(),
  tool_call_started: (scope, { id, name }) => scope.cards.set(id, new Card(scope.current(), name)),
  tool_call_delta: (scope, { id, arguments_delta }) => scope.cards.get(id)?.args.append(arguments_delta),
  tool_call_completed: (scope, { id, raw_arguments, metadata }) => scope.cards.get(id)?.call(raw_arguments, metadata),
  tool_execution_started: (scope, { id }) => scope.cards.get(id)?.set("running", "running …"),
  tool_progress: (scope, { id, data }) => scope.cards.get(id)?.set("running", String(data)),
  tool_execution_completed: (scope, { id, error }) => error && scope.cards.get(id)?.fail(error.reason),
  tool_result_encoded: (scope, { id, content }) => scope.cards.get(id)?.end(content),
  nested: (scope, { path, event }) => scope.find(path)?.scope.feed(event),
  message_completed: (scope) => scope.end(),
  step_completed: (scope) => (scope.step = null),
  step_restarted(scope) {
    scope.blocks.clear()
    scope.step?.replaceChildren()
  },
}

class Thoughts extends Markdown {
  constructor(details) {
    const summary = add(details, "summary", "", "Thinking …")
    super(add(details, "div", "thought markdown"))
    this.summary = summary
  }

  end() {
    super.end()
    this.summary.textContent = "Thoughts"
  }
}

const FAULTS = {
  __proto__: null,
  handler_raised: "failed: the tool reported an error",
  invalid_arguments: "failed: the arguments are invalid",
  timeout: "failed: the tool took too long",
  denied: "denied",
}

class Card {
  constructor(parent, name) {
    this.box = add(parent, "details", "tool")
    const summary = add(this.box, "summary")
    add(summary, "b", "", name)
    this.name = name
    this.state = add(summary, "span", "state")
    this.args = add(this.box, "pre", "arguments")
    this.inner = add(this.box, "div", "inner")
    this.result = add(this.box, "pre", "result")
    this.scope = new Scope(this.inner)
    this.box.open = true
    this.set("arguments", "writes its arguments …")
  }

  set(state, text = state) {
    this.box.dataset.state = state
    this.state.textContent = text
  }

  call(text, metadata) {
    this.args.textContent = indented(text)
    if (metadata?.error) this.fail("invalid_arguments")
    else this.set("called")
  }

  fail(reason) {
    this.set(reason === "denied" ? "denied" : "failed", FAULTS[reason] ?? `failed: ${reason.replaceAll("_", " ")}`)
  }

  // Show the result, unless it repeats the error or an agent's answer.
  end(content) {
    this.scope.end()
    const reason = reasonOf(content)
    if (reason) return this.fail(reason)
    this.set("done")
    if (content.trim() !== this.scope.answer?.source.trim()) this.result.textContent = indented(content)
  }

  ask(decide) {
    this.set("waiting", "waits for your approval")
    this.box.open = true
    const ask = add(this.box, "div", "ask")
    for (const [label, isApproved] of [["Approve", true], ["Deny", false]]) {
      const button = add(ask, "button", isApproved ? "main" : "", label)
      button.onclick = () => {
        ask.remove()
        this.set("called", isApproved ? "approved" : "denied")
        decide(isApproved)
      }
    }
  }
}

function reasonOf(content) {
  try {
    const { error } = JSON.parse(content)
    return typeof error === "string" ? error : null
  } catch {
    return null
  }
}

// Short JSON stays on its line.
function indented(text) {
  if (text.length < 40) return text
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}
