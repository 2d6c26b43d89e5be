// Shows a text that grows as Markdown. Only the last block is written again; what is before it stays as it is.

import { linesOf, parseBlocks } from "./blocks.js";
import { writeInline } from "./inline.js";
import { Writer, appendText, make } from "./text.js";

const MOST_MARKDOWN = 300_000; // characters; what follows is plain text
const MOST_BLOCK = 50_000; // a longer block ends the Markdown, too
const PLAIN_PIECE = 8_192; // characters of an element, so that a long line is laid out in parts

export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.done = 0; // the length of the text in blocks that will not change
    this.last = []; // the elements of the other blocks
    this.plain = -1; // where the plain text begins
  }

  // Show `text`, which begins with the text of the last call, with its origins as runs [end, origin].
  update(text, runs) {
    if (this.plain < 0) this.updateBlocks(text, runs);
    if (this.plain >= 0) this.updatePlain(text);
  }

  updateBlocks(text, runs) {
    const writer = new Writer(text, runs);
    const to = whole(text, MOST_MARKDOWN);
    const blocks = parseBlocks(text, linesOf(text, this.done, to));
    for (const element of this.last) element.remove();
    this.last = [];
    // The first line of a block may make it part of the block before as long as it is not complete.
    const n = blocks.length;
    const nOpen = n && text.indexOf("\n", blocks[n - 1].start) < 0 ? 2 : 1;
    for (let i = 0; i < n; i++) {
      const end = i + 1 < n ? blocks[i + 1].start : to;
      const isLong = end - blocks[i].start > MOST_BLOCK;
      const block = isLong ? this.cut(text, blocks[i].start) : blocks[i];
      const element = build(block, writer);
      this.element.append(element);
      if (isLong) {
        this.plain = whole(text, block.start + MOST_BLOCK);
        return;
      }
      if (i < n - nOpen) this.done = end;
      else this.last.push(element);
    }
    if (to < text.length) this.plain = to;
  }

  cut(text, start) {
    return parseBlocks(text, linesOf(text, start, whole(text, start + MOST_BLOCK)))[0];
  }

  updatePlain(text) {
    while (this.plain < text.length) {
      let piece = this.element.lastElementChild;
      let room = PLAIN_PIECE - Number(piece?.dataset.plain ?? PLAIN_PIECE);
      if (room <= 0) {
        this.element.append((piece = make("div", { className: "plain", dir: "auto" })));
        room = PLAIN_PIECE;
      }
      const end = whole(text, this.plain + room);
      appendText(piece, text.slice(this.plain, end));
      piece.dataset.plain = PLAIN_PIECE - room + end - this.plain;
      this.plain = end;
    }
  }
}

// The end of the first `n` units of a text, or one more where they would end within a surrogate pair.
function whole(text, n) {
  return Math.min(text.length, text.codePointAt(n - 1) > 0xffff ? n + 1 : n);
}

function build(block, writer) {
  return BUILD[block.type](block, writer);
}

function inline(tag, lines, writer) {
  const element = make(tag, { dir: "auto" });
  writeInline(element, lines, writer);
  return element;
}

const BUILD = {
  paragraph: (block, writer) => inline("p", block.lines, writer),
  heading: (block, writer) => inline(`h${Math.min(6, block.level + 2)}`, block.lines, writer),
  rule: () => make("hr"),
  quote: (block, writer) => make("blockquote", {}, ...block.blocks.map((inner) => build(inner, writer))),
  code: buildCode,
  list(block, writer) {
    const list = make(block.ordered ? "ol" : "ul");
    if (block.ordered && block.first !== 1) list.start = block.first;
    for (const item of block.items) {
      list.append(make("li", { dir: "auto" }, ...item.map((inner) => build(inner, writer))));
    }
    return list;
  },
  table(block, writer) {
    const [head, ...rows] = block.rows;
    const row = (cells, tag) => {
      const elements = cells.map((cell, i) => {
        const element = inline(tag, [cell], writer);
        element.className = `align-${block.aligns[i] ?? "left"}`;
        return element;
      });
      return make("tr", {}, ...elements);
    };
    const body = rows.map((cells) => row(cells, "td"));
    const table = make("table", {}, make("thead", {}, row(head, "th")), make("tbody", {}, ...body));
    return make("div", { className: "table", tabIndex: 0, role: "region", ariaLabel: "Table" }, table);
  },
};

function buildCode(block, writer) {
  const code = make("code");
  const pre = make("pre", { tabIndex: 0, dir: "ltr" }, code);
  block.lines.forEach(([start, end], i) => {
    if (i) code.append("\n");
    writer.write(code, start, end);
  });
  const language = make("span", { textContent: block.language || "code" });
  const copy = make("button", { type: "button", className: "quiet copy-code", textContent: "Copy code" });
  return make("div", { className: "code" }, make("div", { className: "code-head" }, language, copy), pre);
}
