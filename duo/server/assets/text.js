// Text that a model wrote, as DOM nodes: only text nodes, coloured by origin; invisible characters are shown.

// Bidi controls that could reorder what a reader sees, invisible marks and tags, and control characters other than tab
// and line feed.
const CONTROLS =
  /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}\u0000-\u0008\u000b-\u001f\u007f-\u009f]/gu;
const ORIGINS = { draft: "d", lookup: "l", target: "t" };
const CLASSES = { d: "from-draft", l: "from-lookup" };

// An element with properties and children.
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function codeName(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

// Names that come from elsewhere, such as that of a remote draft: controls as their code points.
export function printable(text) {
  return String(text).replace(CONTROLS, codeName);
}

function append(parent, text) {
  const last = parent.lastChild;
  if (last?.nodeType === Node.TEXT_NODE) last.appendData(text);
  else parent.append(text);
}

// Append text to `parent`; controls become visible boxes.
export function appendText(parent, text) {
  let from = 0;
  for (const { 0: control, index } of text.matchAll(CONTROLS)) {
    if (index > from) append(parent, text.slice(from, index));
    parent.append(make("span", { className: "control", textContent: codeName(control) }));
    from = index + control.length;
  }
  if (from < text.length) append(parent, from ? text.slice(from) : text);
}

// Origins of a text are runs [end, origin] in UTF-16 units; this adds those of what follows `start`, which come as
// [source, number of code points]. Returns the sources that are left.
export function addOrigins(runs, text, start, sources) {
  const left = [];
  let at = start;
  for (const [source, nPoints] of sources) {
    let n = 0;
    for (; n < nPoints && at < text.length; n++) at += text.codePointAt(at) > 0xffff ? 2 : 1;
    if (n) addRun(runs, at, ORIGINS[source] ?? "t");
    if (n < nPoints) left.push([source, nPoints - n]);
  }
  if (at < text.length) addRun(runs, text.length, "t");
  return left;
}

function addRun(runs, end, origin) {
  const last = runs[runs.length - 1];
  if (last?.[1] === origin) last[0] = end;
  else runs.push([end, origin]);
}

// White space at the ends has no origin to be seen.
function writeOrigin(parent, text, name) {
  const start = text.length - text.trimStart().length;
  const end = text.trimEnd().length;
  if (start) append(parent, text.slice(0, start));
  let span = parent.lastChild;
  if (span?.className !== name) parent.append((span = make("span", { className: name })));
  appendText(span, text.slice(start, end));
  if (end < text.length) append(parent, text.slice(end));
}

// Writes slices of a source into elements, each run of a draft's or the lookup's text in a span.
export class Writer {
  constructor(source, runs) {
    this.source = source;
    this.runs = runs;
    this.run = 0;
  }

  write(parent, start, end) {
    this.seek(start);
    while (start < end) {
      const run = this.runs[this.run];
      const stop = run ? Math.min(run[0], end) : end;
      const name = run && CLASSES[run[1]];
      const text = this.source.slice(start, stop);
      if (name && text.trim()) writeOrigin(parent, text, name);
      else appendText(parent, text);
      if (run && stop === run[0]) this.run++;
      start = stop;
    }
  }

  // Slices usually follow each other; going back takes a binary search.
  seek(start) {
    const runs = this.runs;
    if (this.run && start < runs[this.run - 1][0]) {
      let low = 0;
      let high = this.run;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (runs[middle][0] > start) high = middle;
        else low = middle + 1;
      }
      this.run = low;
    }
    while (this.run < runs.length && runs[this.run][0] <= start) this.run++;
  }
}
