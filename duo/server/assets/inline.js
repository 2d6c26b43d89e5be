// The inline structure of Markdown: emphasis, code spans and links. Linear in the length of the text.

import { make } from "./text.js";

const MOST_LEVELS = 16;
const MOST_ELEMENTS = 2000; // of one block; more make the browser slow
const MOST_ADDRESS = 2000;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;
const ADDRESS = /https?:\/\/[^\s<>"'`|]{1,2000}/y;
const SAFE = new Set(["http:", "https:", "mailto:"]);

// Write the lines, [start, end] in the writer's source, into `parent`.
export function writeInline(parent, lines, writer) {
  const text = lines.map(([start, end]) => writer.source.slice(start, end)).join("\n");
  const scan = new Scan(text);
  scan.run();
  emit(parent, text, scan, new Slices(lines, writer));
}

// Converts positions in the joined lines to positions in the source.
class Slices {
  constructor(lines, writer) {
    this.lines = lines;
    this.writer = writer;
    this.line = 0;
    this.begin = 0; // of the line, in the joined lines
  }

  write(parent, from, to) {
    while (from < to) {
      const [start, end] = this.lines[this.line];
      const stop = this.begin + (end - start) + 1; // with the line feed
      if (from >= stop) {
        this.begin = stop;
        this.line++;
        continue;
      }
      const n = Math.min(to, stop) - from;
      const at = start + from - this.begin;
      this.writer.write(parent, at, Math.min(at + n, end));
      if (at + n > end) parent.append("\n");
      from += n;
    }
  }
}

class Scan {
  constructor(text) {
    this.text = text;
    this.marks = []; // {at, n, opens: [element...], closes: [element...]}, in the order of the text
    this.stacks = { "*": [], _: [], "~": [], "[": [] };
    this.lastParenthesis = text.lastIndexOf(")");
    this.backticks = new Map(); // positions of runs by their length
    for (const run of text.matchAll(/`+/g)) {
      const positions = this.backticks.get(run[0].length) ?? [];
      positions.push(run.index);
      this.backticks.set(run[0].length, positions);
    }
    for (const positions of this.backticks.values()) positions.reverse();
  }

  run() {
    const text = this.text;
    let at = 0;
    while (at < text.length) {
      const c = text[at];
      if (c === "\\" && at + 1 < text.length && text.charCodeAt(at + 1) < 128 && PUNCTUATION.test(text[at + 1])) {
        this.mark(at, 1);
        at += 2;
      } else if (c === "`") at = this.code(at);
      else if (c === "*" || c === "_" || c === "~") at = this.delimiter(at, c);
      else if (c === "[" || (c === "!" && text[at + 1] === "[")) {
        this.stacks["["].push(this.mark(at, 0));
        at += c === "!" ? 2 : 1; // an image is shown as a link to it
      } else if (c === "]") at = this.bracket(at);
      else if (c === "<") at = this.angle(at);
      else if (c === "h" && text.startsWith("http", at)) at = this.bare(at);
      else at++;
    }
  }

  // A place where elements begin and end; `n` characters of the text are not shown there.
  mark(at, n) {
    const mark = { at, n, opens: [], closes: [] };
    this.marks.push(mark);
    return mark;
  }

  between(first, last, element) {
    first.opens.unshift(element);
    last.closes.push(element);
  }

  code(at) {
    let n = 1;
    while (this.text[at + n] === "`") n++;
    const positions = this.backticks.get(n) ?? []; // the first of a run may be escaped
    while (positions.length && positions[positions.length - 1] <= at) positions.pop();
    if (!positions.length) return at + n;
    const end = positions[positions.length - 1];
    const pad = end - at - n > 2 && this.text[at + n] === " " && this.text[end - 1] === " " ? 1 : 0;
    const first = this.mark(at, n + pad);
    this.between(first, this.mark(end - pad, n + pad), { tag: "code" });
    return end + n;
  }

  delimiter(at, c) {
    let n = 1;
    while (this.text[at + n] === c) n++;
    const before = at ? this.text[at - 1] : " ";
    const after = this.text[at + n] ?? " ";
    const [spaceBefore, spaceAfter] = [SPACE.test(before), SPACE.test(after)];
    const [pointBefore, pointAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !spaceAfter && (!pointAfter || spaceBefore || pointBefore);
    const right = !spaceBefore && (!pointBefore || spaceAfter || pointAfter);
    const isWord = c === "_";
    let opens = left && !(isWord && right && !pointBefore);
    let closes = right && !(isWord && left && !pointAfter);
    if (c === "~" && n !== 2) opens = closes = false;
    let rest = n;
    if (closes) rest = this.close(at, c, rest);
    if (rest && opens) {
      // One mark for each character, so that each can belong to another element.
      const used = Math.min(rest, 3);
      const marks = Array.from({ length: used }, (_, i) => this.mark(at + n - used + i, 0));
      this.stacks[c].push({ at, marks });
    }
    return at + n;
  }

  close(at, c, n) {
    const stack = this.stacks[c];
    while (n && stack.length) {
      const opener = stack[stack.length - 1];
      const use = Math.min(c === "~" ? 2 : opener.marks.length, n, 2);
      if (use > opener.marks.length) break;
      const marks = opener.marks.splice(-use);
      for (const mark of marks) mark.n = 1;
      const last = this.mark(at, use);
      this.between(marks[marks.length - 1], last, { tag: c === "~" ? "del" : use === 2 ? "strong" : "em" });
      at += use;
      n -= use;
      if (!opener.marks.length) stack.pop();
      this.drop(opener.at);
    }
    return n;
  }

  // Forget openers after a position: what they begin would end outside of the element that ends here.
  drop(after) {
    for (const stack of Object.values(this.stacks)) {
      while (stack.length && stack[stack.length - 1].at > after) stack.pop();
    }
  }

  bracket(at) {
    const opener = this.stacks["["].pop();
    if (!opener || this.text[at + 1] !== "(" || at > this.lastParenthesis) return at + 1;
    let end = at + 2;
    let depth = 0;
    for (; end < this.text.length && end - at < MOST_ADDRESS; end++) {
      const c = this.text[end];
      if (c === "(") depth++;
      else if (c === ")" && depth-- === 0) break;
      else if (c === "]" || c === "\n") return at + 1;
    }
    if (this.text[end] !== ")") return at + 1;
    const address = safeAddress(this.text.slice(at + 2, end).trim().split(/\s/)[0].replace(/^<|>$/g, ""));
    if (!address) return at + 1;
    this.drop(opener.at);
    this.stacks["["].length = 0; // no link within a link
    opener.n = this.text[opener.at] === "!" ? 2 : 1;
    this.between(opener, this.mark(at, end + 1 - at), { tag: "a", address });
    return end + 1;
  }

  angle(at) {
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(this.text.slice(at, at + MOST_ADDRESS));
    const address = found && safeAddress(found[1]);
    if (!address) return at + 1;
    const end = at + found[0].length;
    this.between(this.mark(at, 1), this.mark(end - 1, 1), { tag: "a", address });
    return end;
  }

  bare(at) {
    ADDRESS.lastIndex = at;
    const found = ADDRESS.exec(this.text);
    if (!found || this.stacks["["].length || (at && /[\p{L}\p{N}]/u.test(this.text[at - 1]))) return at + 4;
    let n = found[0].length;
    while (".,;:!?*_~'\"".includes(found[0][n - 1])) n--;
    if (found[0][n - 1] === ")" && !found[0].slice(0, n).includes("(")) n--;
    const address = safeAddress(found[0].slice(0, n));
    if (!address) return at + 4;
    this.between(this.mark(at, 0), this.mark(at + n, 0), { tag: "a", address });
    return at + n;
  }
}

function safeAddress(text) {
  try {
    const url = new URL(text);
    return SAFE.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function emit(parent, text, scan, slices) {
  const open = [{ node: parent }];
  let at = 0;
  let n = 0;
  for (const mark of scan.marks) {
    slices.write(open[open.length - 1].node, at, mark.at);
    at = Math.max(at, mark.at + mark.n);
    for (const element of mark.closes) {
      const depth = open.findLastIndex((entry) => entry.element === element);
      if (depth > 0) open.length = depth;
    }
    for (const element of mark.opens) {
      if (open.length > MOST_LEVELS || n++ >= MOST_ELEMENTS) continue;
      const node = make(element.tag);
      if (element.address) {
        Object.assign(node, { href: element.address, title: element.address, target: "_blank" });
        node.rel = "noopener noreferrer";
      }
      open[open.length - 1].node.append(node);
      open.push({ node, element });
    }
  }
  slices.write(open[open.length - 1].node, at, text.length);
}
