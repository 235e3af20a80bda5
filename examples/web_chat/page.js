// The page: one or two panes, each a conversation with a model, and the field that writes to them.

import { Scope } from "./draw.js"
import { add } from "./markdown.js"

const models = JSON.parse(document.body.dataset.models)
const wide = matchMedia("(min-width: 700px)")  // two models stand side by side only here
const $ = (id) => document.getElementById(id)

// What the user can do about an error. Retry asks the model again.
const ERRORS = {
  __proto__: null,
  rate_limited: "The model's provider is busy. Wait a moment, then retry.",
  authentication_failed: "The provider does not accept the server's key. Set another key on the server.",
  missing_key: "The server has no key for this model. Set the key on the server.",
  invalid_request: "The provider rejected the request. The server's log has the details.",
  provider_unavailable: "The provider is unavailable. Retry in a moment.",
  network_error: "The server cannot reach the provider. Retry in a moment.",
  timeout: "The model took too long. Retry, or choose another model.",
  truncated: "The answer broke off. Retry to ask for all of it.",
  context_length_exceeded: "The conversation is too long for this model. Start a new chat.",
  content_filter: "The provider's filter stopped the answer. Ask in other words.",
}

// Let screen readers say a text, after the name of its speaker if another one has spoken last.
function announce(speaker, text) {
  add($("live"), "p", "", speaker === lastSpeaker ? text : `${speaker}: ${text}`)
  lastSpeaker = speaker
  while ($("live").children.length > 20) $("live").firstChild.remove()
}
let lastSpeaker = null

// Keep the cursor in the field. On a touch screen, that would open the keyboard.
const focusField = () => matchMedia("(pointer: coarse)").matches || $("text").focus()

class Pane {
  constructor(model) {
    this.model = model
    this.name = models[model]
    this.url = `${location.pathname}/${model}`
    this.box = add(document.querySelector("main"), "section", "pane")
    this.box.ariaLabel = `Conversation with ${this.name}`
    this.addBar()
    this.turns = add(this.box, "div", "turns")
    this.list = add(this.turns, "div", "list")
    this.keepAtEnd()
    this.scope = new Scope(this.list, (text) => this.say(text))
    this.sections = []
    this.left = new AbortController()
    this.liveFrom = Infinity  // the first turn that is announced
    this.heard = this.said = 0  // how many texts of the turn have been drawn, and announced
    this.unsent = null
    this.isEmpty = this.isLive = false
    this.set("idle")
    this.open()
  }

  async open() {
    const refused = await this.follow("/0")
    if (refused) this.refuse(await refused.text())
    else this.setEmpty(!this.sections.length)
  }

  addBar() {
    const bar = add(this.box, "div", "bar")
    const select = add(bar, "select")
    select.ariaLabel = "Model"
    models.forEach((name, i) => (add(select, "option", "", name).value = i))
    select.value = this.model
    select.onchange = () => show(panes.map((pane) => (pane === this ? +select.value : pane.model)))
    this.status = add(bar, "span", "status")
    this.stop = add(bar, "button", "stop", "Stop")
    this.stop.onclick = () => {
      fetch(this.url, { method: "DELETE" }).catch(() => {})  // then `follow` reconnects
      focusField()
    }
  }

  // Follow the text as it grows, unless the user has scrolled up.
  keepAtEnd() {
    const { turns } = this
    this.isAtEnd = true
    let last = 0
    turns.onscroll = () => {
      if (turns.scrollHeight - turns.scrollTop - turns.clientHeight < 60) this.isAtEnd = true
      else if (turns.scrollTop < last) this.isAtEnd = false
      last = turns.scrollTop
    }
    const observer = new ResizeObserver(() => this.isAtEnd && (turns.scrollTop = turns.scrollHeight))
    observer.observe(this.list)
    observer.observe(turns)
  }

  set(state, text = "") {
    this.box.dataset.state = state
    this.status.textContent = text
    this.stop.hidden = state !== "running"
    refresh()
  }

  setEmpty(isEmpty) {
    this.isEmpty = isEmpty
    this.box.classList.toggle("empty", isEmpty)
    refresh()
  }

  // Announce a text, unless a reconnection has only drawn it again.
  say(text) {
    if (this.isLive && text.trim() && this.heard++ >= this.said) {
      announce(this.name, text)
      this.said = this.heard
    }
  }

  // Draw the events of a response. Return true if the response has ended, false if the connection was lost.
  async read(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
    for (let rest = "", ended = false; ; ) {
      const { done, value } = await reader.read()
      if (done) return ended
      const messages = (rest + value).split("\n\n")
      rest = messages.pop()
      for (const message of messages.filter((text) => text.startsWith("data: "))) {  // others are heartbeats
        const event = JSON.parse(message.slice(6))
        ended ||= event.type === "end"
        this.feed(event)
      }
    }
  }

  // Draw the turns in a response. After a lost connection, ask for the last turn again; `begin` replaces its box.
  // Return the response if the server refused the request.
  async follow(path, options) {
    for (;;) {
      try {
        const response = await fetch(this.url + path, { signal: this.left.signal, ...options })
        if (!response.ok) return response
        this.set(this.box.dataset.state)
        if (await this.read(response)) return
      } catch {
        if (this.left.signal.aborted) return
      }
      this.set(this.box.dataset.state, "reconnecting …")
      await new Promise((done) => setTimeout(done, 1000))
      path = `/${Math.max(0, this.sections.length - 1)}`
      options = {}
    }
  }

  async post(message) {
    this.liveFrom = this.sections.length
    this.isAtEnd = true
    this.said = 0
    this.unsent?.remove()
    this.unsent = add(this.list, "div", "turn")  // until the server has taken the message
    if (message.text) this.addMessage(this.unsent, "You", "user", message.text)
    this.setEmpty(false)
    this.set("running", "sending …")
    const refused = await this.follow("", { method: "POST", body: JSON.stringify(message) })
    if (this.left.signal.aborted || (!this.unsent && !refused)) return
    const fault = refused ? await refused.text() : "The connection broke, and the message was not sent."
    this.refuse(fault, refused?.status < 500 ? null : () => this.post(message))
  }

  // Show an error that is not part of the conversation. It goes with the next message.
  refuse(fault, retry) {
    this.unsent ??= add(this.list, "div", "turn")
    this.isLive = true
    this.heard = this.said = 0
    this.addError(this.unsent, fault, retry)
    this.setEmpty(false)
    this.set("idle")
  }

  feed(event) {
    if (event.type === "custom" && event.name === "turn") this.begin(event.data)
    else if (event.type === "custom" && event.name === "pending") this.ask(event.data)
    else if (event.type === "chat_completed") this.complete(event.result)
    else if (event.type === "error") this.fail(event.error)
    else this.scope.feed(event)
  }

  begin({ number, text, retry }) {
    for (const section of this.sections.splice(number)) section.remove()
    for (const asked of this.list.querySelectorAll(".ask, .error")) asked.remove()
    // A retry repeats the step that failed. The conversation keeps a step with tool calls.
    const failed = retry && this.sections.at(-1)?.querySelector(".answer > .content > .step:last-child")
    if (failed && !failed.querySelector(".tool")) failed.remove()
    this.isLive = number >= this.liveFrom
    if (this.isLive) {
      this.unsent?.remove()
      this.unsent = null
    }
    const turn = add(this.list, "div", "turn")
    this.list.insertBefore(turn, this.unsent)
    if (text) this.addMessage(turn, "You", "user", text)
    this.sections.push(turn)
    this.scope.end()
    this.scope.box = this.addMessage(turn, this.name, "answer")
    this.scope.step = null
    this.heard = 0
    turn.dataset.state = "running"
    this.setEmpty(false)
    this.set("running", "running …")
  }

  // A message is an article that begins with its speaker.
  addMessage(turn, speaker, className, text = "") {
    const message = add(turn, "article", className)
    message.ariaLabel = speaker
    add(message, "h2", "speaker", speaker)
    add(message, "div", "content", text)
    return message.lastChild
  }

  ask(ids) {
    if (!ids.length) return
    this.set("waiting", "waits for you")
    for (const error of this.sections.at(-1).querySelectorAll(".error button")) error.remove()
    const approvals = {}
    for (const id of ids) {
      const card = this.scope.find(this.scope.cards.has(id) ? [id] : id.split("/"))
      if (!card) continue
      announce(this.name, `${card.name} waits for your approval.`)
      card.ask((isApproved) => {
        approvals[id] = isApproved
        focusField()
        if (Object.keys(approvals).length === ids.length) this.post({ approvals })
      })
    }
  }

  end(text) {
    this.scope.end()
    const turn = this.sections.at(-1)
    turn.dataset.state = "ended"
    if (text) add(turn, "p", "end", text)
  }

  complete({ halted_reason, error, usage = {} }) {
    if (halted_reason === "error") return this.fail(error ?? { reason: "unknown" })
    const words = {
      approval: "",
      completed: usage.total_tokens ? `${usage.total_tokens} tokens` : "",
    }
    this.end(words[halted_reason] ?? `ended: ${halted_reason.replaceAll("_", " ")}`)
    this.set("idle")
  }

  // A chat that fails in its middle reports its error twice: as an event, and in its result.
  fail({ reason }) {
    const turn = this.sections.at(-1)
    if (turn.dataset.state === "ended") return
    this.end(reason === "cancelled" ? "stopped" : "")
    this.set("idle")
    if (reason === "cancelled") return this.say("Stopped.")
    const other = `The model failed: ${reason.replaceAll("_", " ")}. The server's log has the details.`
    this.addError(turn, ERRORS[reason] ?? other, () => this.post({ retry: true }))
  }

  addError(turn, fault, retry) {
    const error = add(turn, "div", "error")
    add(error, "p", "", fault)
    if (retry) {
      add(error, "button", "retry", "Retry").onclick = () => {
        error.remove()
        retry()
        focusField()
      }
    }
    this.say(fault)
  }
}

let panes = []
let wanted = []

// Put the numbers of the wanted models into the address, so that a reload shows the same models.
function show(numbers) {
  for (const pane of panes) {
    pane.left.abort()
    pane.box.remove()
  }
  history.replaceState(null, "", `#${numbers}`)
  wanted = numbers
  panes = []  // while the panes are made, `refresh` finds none of the old ones
  panes = (wide.matches ? numbers : numbers.slice(0, 1)).map((number) => new Pane(number))
  $("both").checked = numbers.length > 1
  refresh()
}

function refresh() {
  $("send").disabled = panes.some((pane) => pane.box.dataset.state !== "idle")
  $("ideas").hidden = !panes.length || !panes.every((pane) => pane.isEmpty)
}

function send(text) {
  if (!text.trim() || $("send").disabled) return
  lastSpeaker = null
  for (const pane of panes) pane.post({ text })
  $("text").value = ""
  focusField()
}

document.forms[0].onsubmit = (event) => {
  event.preventDefault()
  send($("text").value)
}
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
  event.preventDefault()
  send($("text").value)
}
for (const idea of ["Name three fruits.", "Show a table and code.", "Order two pizzas.", "Ask the weather expert."])
  add($("ideas"), "button", "", idea).onclick = () => send(idea)
$("both").onchange = () => show($("both").checked ? [panes[0].model, models.length - 1] : [panes[0].model])
wide.onchange = () => wanted.length > 1 && show(wanted)
$("new").onclick = () => (location.href = "/")
addEventListener("pagehide", () => navigator.sendBeacon(`${location.pathname}/leave`))
addEventListener("pageshow", ({ persisted }) => persisted && location.reload())
const given = location.hash.slice(1).split(",").filter((number) => number !== "" && +number in models).map(Number)
show(given.length ? given : [0])
focusField()
