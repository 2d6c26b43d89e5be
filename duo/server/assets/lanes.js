// What the models did in the last seconds, on a canvas. Drawn only when there is something new.

const WINDOW_MS = 6000;
const LANES = ["target", "draft", "remote draft"];
const LABEL = 88; // px, of a lane's name
const ROW = 22;
const BAR = 14;
const MOST = 8; // lanes of texts

export class Lanes {
  constructor(canvas, caption) {
    this.canvas = canvas;
    this.caption = caption;
    this.spans = new Map();
    this.expected = {};
    this.own = 0; // the number of the last text of this page
    this.newest = 0;
    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      this.draw();
    }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = null;
      this.draw();
    });
  }

  add(id, spans) {
    for (const span of spans) {
      if (!LANES.includes(span.lane)) continue;
      if (!this.spans.has(span.lane)) this.spans.set(span.lane, []);
      this.spans.get(span.lane).push({ ...span, id });
      this.newest = Math.max(this.newest, span.end_ms);
    }
    for (const [lane, all] of this.spans) {
      this.spans.set(lane, all.filter((span) => span.end_ms > this.newest - WINDOW_MS));
    }
  }

  // Lanes to show even if nothing happens in them.
  expect(lanes) {
    this.expected = lanes;
  }

  clear() {
    this.spans.clear();
    this.newest = 0;
    this.draw();
  }

  // What the target did: a lane for each of the texts that it wrote at the same time, the own one first.
  texts() {
    const rows = [];
    for (const [id, spans] of Map.groupBy(this.spans.get("target") ?? [], (span) => span.id)) {
      const before = rows.find((row) => row.spans.at(-1).end_ms <= spans[0].start_ms);
      if (before) Object.assign(before, { id, spans: [...before.spans, ...spans] });
      else rows.push({ id, spans });
    }
    if (rows.length < 2) return [{ name: "target", spans: rows[0]?.spans ?? [], colour: "accent" }];
    rows.sort((one, other) => (other.id === this.own) - (one.id === this.own));
    return rows.slice(0, MOST).map(({ id, spans }) => {
      return { name: id === this.own ? "this chat" : `text ${id}`, spans, colour: "text" };
    });
  }

  draw() {
    if (!this.width) return;
    const drafts = LANES.slice(1).filter((lane) => this.expected[lane] || this.spans.get(lane)?.length);
    const rows = drafts.map((name) => ({ name, spans: this.spans.get(name) ?? [], colour: "draft" }));
    const lanes = [...this.texts(), ...rows];
    const height = lanes.length * ROW;
    const scale = devicePixelRatio;
    const [width, depth] = [Math.round(this.width * scale), Math.round(height * scale)];
    if (this.canvas.width !== width || this.canvas.height !== depth) {
      Object.assign(this.canvas, { width, height: depth });
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, height);
    const colours = (this.colours ??= colourNames());
    context.font = `12px ${colours.font}`;
    context.textBaseline = "middle";
    lanes.forEach((lane, i) => this.drawLane(context, colours, lane, i * ROW + (ROW - BAR) / 2));
    this.describe(lanes);
  }

  drawLane(context, colours, { name: lane, spans, colour }, top) {
    const room = this.width - LABEL;
    const at = (ms) => LABEL + Math.max(0, 1 - (this.newest - ms) / WINDOW_MS) * room;
    context.fillStyle = colours.muted;
    context.fillText(lane, 0, top + BAR / 2);
    context.fillStyle = colours.raised;
    context.fillRect(LABEL, top, room, BAR);
    for (const { name, start_ms: start, end_ms: end, id } of spans) {
      const left = at(start);
      const width = Math.max(at(end) - left - 0.5, 0.75);
      context.fillStyle = colours[colour === "text" ? (id === this.own ? "accent" : "muted") : colour];
      context.globalAlpha = name === "prompt" || name === "catch up" ? 0.5 : 1;
      if (name === "wait") context.fillRect(left, top + BAR / 2 - 0.5, width, 1);
      else context.fillRect(left, top, width, BAR);
    }
    context.globalAlpha = 1;
  }

  // The text alternative: how much of the time each model computed.
  describe(lanes) {
    const shares = lanes.map(({ name, spans }) => {
      const oldest = this.newest - WINDOW_MS;
      const computing = spans.filter((span) => span.name !== "wait");
      const busy = computing.reduce((sum, span) => sum + span.end_ms - Math.max(oldest, span.start_ms), 0);
      return `${name} ${Math.min(100, Math.round((100 * busy) / WINDOW_MS))} %`;
    });
    const text = this.newest ? `Computing: ${shares.join(", ")} of the time.` : "No text has been generated yet.";
    if (this.caption.textContent !== text) this.caption.textContent = text;
  }
}

function colourNames() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`);
  return {
    accent: value("accent"),
    draft: value("draft"),
    muted: value("muted"),
    raised: value("raised"),
    font: value("font"),
  };
}
