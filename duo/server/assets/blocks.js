// The block structure of Markdown: a list of lines, as [start, end] in the source, becomes a tree of blocks.
// Linear in the length of the text: each line is read once per level, and levels are limited.

const MOST_LEVELS = 8;
const MOST_CELLS = 64;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const QUOTE = /^ {0,3}> ?/;

export function linesOf(source, from, to) {
  const lines = [];
  while (from < to) {
    const found = source.indexOf("\n", from);
    const end = found < 0 || found > to ? to : found;
    lines.push([from, end > from && source[end - 1] === "\r" ? end - 1 : end]);
    from = end + 1;
  }
  return lines;
}

export function parseBlocks(source, lines, level = 0) {
  const blocks = [];
  const parser = new Parser(source, lines, level);
  while (parser.at < lines.length) {
    const block = parser.block();
    if (block) blocks.push(block);
  }
  return blocks;
}

class Parser {
  constructor(source, lines, level) {
    this.source = source;
    this.lines = lines;
    this.level = level;
    this.at = 0;
  }

  line(i = this.at) {
    return this.source.slice(this.lines[i][0], this.lines[i][1]);
  }

  block() {
    const line = this.line();
    if (isBlank(line)) {
      this.at++;
      return null;
    }
    const start = this.lines[this.at][0];
    const fence = fenceOf(line);
    if (fence) return { ...this.code(fence), start };
    const heading = HEADING.exec(line);
    if (heading) return { ...this.heading(heading), start };
    if (isRule(line)) {
      this.at++;
      return { type: "rule", start };
    }
    if (this.level < MOST_LEVELS) {
      if (QUOTE.test(line)) return { ...this.quote(), start };
      const item = ITEM.exec(line);
      if (item) return { ...this.list(item), start };
    }
    if (this.isTable(this.at)) return { ...this.table(), start };
    return { ...this.paragraph(), start };
  }

  code({ mark, language }) {
    const lines = [];
    for (this.at++; this.at < this.lines.length; this.at++) {
      const line = this.line();
      const end = /^ {0,3}([`~]+)[ \t]*$/.exec(line);
      if (end && end[1][0] === mark[0] && end[1].length >= mark.length) {
        this.at++;
        break;
      }
      lines.push(this.lines[this.at]);
    }
    return { type: "code", language, lines };
  }

  heading([all, marks]) {
    const [start, end] = this.lines[this.at++];
    const [from, to] = this.trimmed(start + all.length, end);
    let text = to; // without a closing sequence of #
    while (text > from && this.source[text - 1] === "#") text--;
    const closed = text === from || this.source[text - 1] === " ";
    return { type: "heading", level: marks.length, lines: [this.trimmed(from, closed ? text : to)] };
  }

  quote() {
    const lines = [];
    for (; this.at < this.lines.length; this.at++) {
      const mark = QUOTE.exec(this.line());
      if (!mark) break;
      const [start, end] = this.lines[this.at];
      lines.push([start + mark[0].length, end]);
    }
    return { type: "quote", blocks: parseBlocks(this.source, lines, this.level + 1) };
  }

  list([, indent, mark]) {
    const ordered = mark.length > 1;
    const first = ordered ? Number.parseInt(mark, 10) : 0;
    const items = [];
    while (this.at < this.lines.length) {
      const line = this.line();
      const item = ITEM.exec(line);
      if (!item || item[2].length > 1 !== ordered || item[1].length > indent.length + 1 || isRule(line)) break;
      items.push(this.item(item));
    }
    return { type: "list", ordered, first, items };
  }

  // The lines of an item: those that are indented by two columns or more, and lines that go on with its paragraph.
  item([all, indent]) {
    const [start, end] = this.lines[this.at++];
    const lines = [[Math.min(start + all.length, end), end]];
    let blank = false;
    for (; this.at < this.lines.length; this.at++) {
      const line = this.line();
      if (isBlank(line)) {
        blank = true;
        lines.push(this.lines[this.at]);
        continue;
      }
      const n = line.length - line.trimStart().length;
      if (n < indent.length + 2 && (blank || this.begins(this.at))) break;
      const [from, to] = this.lines[this.at];
      lines.push([from + Math.min(n, all.length), to]);
      blank = false;
    }
    return parseBlocks(this.source, lines, this.level + 1);
  }

  table() {
    const aligns = this.cells(this.at + 1).map(([start, end]) => {
      const cell = this.source.slice(start, end);
      return cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left";
    });
    const rows = [this.cells(this.at)];
    for (this.at += 2; this.at < this.lines.length; this.at++) {
      const line = this.line();
      if (isBlank(line) || !line.includes("|")) break;
      rows.push(this.cells(this.at).slice(0, aligns.length));
    }
    return { type: "table", aligns, rows };
  }

  cells(i) {
    const cells = [];
    const [start, end] = this.trimmed(...this.lines[i]);
    let from = this.source[start] === "|" ? start + 1 : start;
    for (let at = from; at <= end; at++) {
      if (at < end && (this.source[at] !== "|" || this.source[at - 1] === "\\")) continue;
      if (at < end || at > from) cells.push(this.trimmed(from, at));
      from = at + 1;
    }
    return cells.slice(0, MOST_CELLS);
  }

  trimmed(start, end) {
    while (start < end && " \t".includes(this.source[start])) start++;
    while (end > start && " \t".includes(this.source[end - 1])) end--;
    return [start, end];
  }

  paragraph() {
    const lines = [];
    do {
      lines.push(this.trimmed(...this.lines[this.at++]));
    } while (this.at < this.lines.length && !isBlank(this.line()) && !this.begins(this.at));
    return { type: "paragraph", lines };
  }

  // Whether a line begins another block than a paragraph.
  begins(i) {
    const line = this.line(i);
    if (fenceOf(line) || HEADING.test(line) || isRule(line) || this.isTable(i)) return true;
    return this.level < MOST_LEVELS && (QUOTE.test(line) || ITEM.test(line));
  }

  isTable(i) {
    if (i + 1 >= this.lines.length || !this.line(i).includes("|")) return false;
    const line = this.line(i + 1);
    return line.includes("-") && line.length < 2000 && /^[ \t|:-]+$/.test(line) && line.includes("|");
  }
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found) return null;
  const rest = line.slice(found[0].length);
  if (found[1][0] === "`" && rest.includes("`")) return null;
  return { mark: found[1], language: rest.trim().slice(0, 40) };
}

function isBlank(line) {
  return line.trim() === "";
}

function isRule(line) {
  if (line.length > 1000) return false;
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}
