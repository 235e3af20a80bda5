// Markdown as elements. Nothing is parsed as HTML: each kind of token has its own element, and everything else, HTML
// included, is text. A link leads to the web or to a mail address. An image becomes a link, so that an answer loads
// nothing.

import { Marked } from "./vendor/marked.esm.js"

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" }
const SCHEMES = ["http:", "https:", "mailto:"]

// Formulas keep their backslashes and underscores.
const formula = {
  name: "formula",
  level: "inline",
  start: (source) => source.search(/\\[([]|\$\$/),
  tokenizer(source) {
    const raw = /^(?:\\\(.+?\\\)|\\\[.+?\\\]|\$\$.+?\$\$)/s.exec(source)?.[0]
    return raw && { type: "formula", raw }
  },
}
const marked = new Marked({ extensions: [formula] })

// All text is set as text, never as HTML.
export function add(parent, tag, className = "", text = "") {
  const element = Object.assign(document.createElement(tag), { className, textContent: text })
  parent.append(element)
  return element
}

// A text that grows. Its blocks are drawn at most once a frame, and only those that have changed.
export class Markdown {
  constructor(box, onblock = () => {}) {
    this.box = box
    this.onblock = onblock  // called once with each finished block
    this.source = ""
    this.keys = []
    this.finished = 0
  }

  append(delta) {
    this.source += delta
    waiting.add(this)
    schedule()
  }

  // Draw what waits to be drawn. No further text arrives.
  end() {
    this.draw()
    this.finish(this.keys.length)
  }

  draw() {
    waiting.delete(this)
    const tokens = parse(this.source)
    tokens.forEach((token, i) => {
      const key = JSON.stringify(token)
      const old = this.box.children[i]
      if (key === this.keys[i]) return
      if (token.type === "code" && old?.dataset.type === "code") fillCode(old, token)
      else {
        const block = blockOf(token)
        block.dataset.type = token.type
        old ? old.replaceWith(block) : this.box.append(block)
      }
      this.keys[i] = key
    })
    while (this.box.children.length > tokens.length) this.box.lastChild.remove()
    this.keys.length = tokens.length
    this.finish(tokens.length - 1)
  }

  finish(count) {
    while (this.finished < count) this.onblock(this.box.children[this.finished++])
  }
}

const waiting = new Set()
let isScheduled = false
let cost = 0  // the milliseconds that the last drawing took

// Leave the browser three times as long for everything else.
function schedule() {
  if (isScheduled) return
  isScheduled = true
  setTimeout(requestAnimationFrame, 3 * cost, () => {
    isScheduled = false
    const begin = performance.now()
    for (const text of waiting) text.draw()
    cost = performance.now() - begin
  })
}

function parse(source) {
  try {
    return marked.lexer(source).filter(({ type }) => type !== "space" && type !== "def")
  } catch {  // nested too deeply
    return [{ type: "html", raw: source }]
  }
}

function blockOf(token) {
  const box = document.createElement("div")
  drawBlock(box, token)
  return box.children.length === 1 ? box.firstChild : box
}

function drawBlock(box, token) {
  if (Object.hasOwn(blocks, token.type)) blocks[token.type](box, token)
  else drawInline(add(box, "p"), token.tokens ?? [{ type: "html", raw: token.raw.trimEnd() }])
}

const drawBlocks = (box, tokens) => tokens.forEach((token) => drawBlock(box, token))
const drawInline = (box, tokens) => tokens.forEach((token) => inlineOf(box, token))

const blocks = {
  space() {},
  def() {},
  hr: (box) => add(box, "hr"),
  heading: (box, { depth, tokens }) => drawInline(add(box, `h${Math.min(depth + 2, 6)}`), tokens),
  blockquote: (box, { tokens }) => drawBlocks(add(box, "blockquote"), tokens),
  text: (box, token) => drawInline(box, token.tokens ?? [token]),
  checkbox: (box, { checked }) => box.append(checked ? "☑ " : "☐ "),
  list(box, { ordered, start, items }) {
    const list = add(box, ordered ? "ol" : "ul")
    if (ordered) list.start = start
    for (const item of items) drawBlocks(add(list, "li", item.task ? "task" : ""), item.tokens)
  },
  table(box, { header, align, rows }) {
    const table = add(add(box, "div", "table"), "table")
    const drawRow = (parent, tag, cells) => {
      const row = add(parent, "tr")
      cells.forEach(({ tokens }, i) => {
        const cell = add(row, tag)
        cell.style.textAlign = align[i] ?? ""
        drawInline(cell, tokens)
      })
    }
    drawRow(add(table, "thead"), "th", header)
    const body = add(table, "tbody")
    for (const row of rows) drawRow(body, "td", row)
  },
  code(box, token) {
    const block = add(box, "div", "code")
    const head = add(block, "div", "head")
    add(head, "span")
    const copy = add(head, "button", "copy", "Copy")
    copy.onclick = () => copyCode(copy, code)
    const code = add(add(block, "pre"), "code")
    fillCode(block, token)
  },
}

function fillCode(block, { lang, text }) {
  block.querySelector("span").textContent = lang || "code"
  block.querySelector("code").textContent = text
}

async function copyCode(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent)
  } catch {  // not a secure page, or the browser asks the user to copy
    getSelection().selectAllChildren(code)
    if (!document.execCommand("copy")) return
  }
  button.textContent = "Copied"
  setTimeout(() => (button.textContent = "Copy"), 2000)
}

const TAGS = { strong: "strong", em: "em", del: "s" }

function inlineOf(box, token) {
  const { type, raw, text, tokens } = token
  if (Object.hasOwn(TAGS, type)) drawInline(add(box, TAGS[type]), tokens)
  else if (type === "codespan") add(box, "code", "", text)
  else if (type === "br" || /^<br\s*\/?>$/i.test(raw)) add(box, "br")
  else if (type === "checkbox") blocks.checkbox(box, token)
  else if (type === "link" || type === "image") drawLink(box, token)
  else if (type === "text" && tokens) drawInline(box, tokens)
  else if (type === "text") box.append(decode(text))
  else box.append(type === "escape" ? text : raw)
}

function drawLink(box, { raw, href, text, tokens }) {
  if (!SCHEMES.includes(URL.parse(href)?.protocol)) return box.append(raw)
  const link = Object.assign(add(box, "a"), { href, target: "_blank", rel: "noopener noreferrer nofollow" })
  tokens?.length ? drawInline(link, tokens) : link.append(text || href)
}

function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]+));/gi, (raw, decimal, hex, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : raw
    const code = decimal ? Number(decimal) : parseInt(hex, 16)
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : raw
  })
}
