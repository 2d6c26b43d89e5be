// The panel beside the chat: follows the lead's events while it is open and the page is visible.

import { eventsOf } from "./api.js";
import { askWithKey } from "./dialogs.js";
import { Lanes } from "./lanes.js";
import { make, printable } from "./text.js";

const DRAW_MS = 250; // least time between two drawings of the lanes
const [FIRST_WAIT_MS, MOST_WAIT_MS] = [1000, 15_000];
const SCHEDULES = {
  async: "concurrent: both compute at once",
  sync: "sequential: in turns",
  off: "target alone",
};

const $ = (id) => document.getElementById(id);

function put(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

export class Live {
  // `onModel` gets the lead's model when it was loaded, and when it may be another one.
  constructor(onModel) {
    this.onModel = onModel;
    this.isRunning = false; // a text is being generated
    this.own = 0; // the number of the text of this page that is being generated
    this.shown = 0; // of another one, whose figures are shown
    this.lanes = new Lanes($("lanes"), $("lanes-text"));
    this.wanted = false;
    this.controller = null;
    this.drawn = 0;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.follow());
    document.addEventListener("key", () => {
      this.controller?.abort();
      this.controller = null;
      this.follow();
    });
  }

  set open(open) {
    this.wanted = open;
    this.follow();
  }

  // Connect or disconnect, as is wanted now.
  follow() {
    const wanted = this.wanted && !document.hidden;
    if (wanted && !this.controller) {
      this.controller = new AbortController();
      this.run(this.controller.signal);
    } else if (!wanted && this.controller) {
      this.controller.abort();
      this.controller = null;
    }
  }

  async run(signal) {
    let wait = FIRST_WAIT_MS;
    while (!signal.aborted) {
      let problem = "The connection to the lead was lost.";
      try {
        const response = await askWithKey("/v1/duo/events", { signal, background: true });
        put("live-problem", "");
        $("live-problem").hidden = true;
        this.lanes.clear();
        this.model = "";
        for await (const batch of eventsOf(response)) {
          wait = FIRST_WAIT_MS;
          this.take(batch);
        }
      } catch (error) {
        problem = error.message;
      }
      if (signal.aborted) return;
      this.showRest();
      put("live-problem", `${problem} Trying again.`);
      $("live-problem").hidden = false;
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, MOST_WAIT_MS);
    }
  }

  take(batch) {
    const progress = [];
    for (const { name, data } of batch) {
      const event = JSON.parse(data);
      if (name === "spans") this.lanes.add(event.id, event.spans);
      else if (name === "progress") progress.push(event);
      else if (name === "state") {
        showState(event);
        this.isRunning = event.queue.running > 0;
        if (!this.isRunning) this.showRest();
        const model = JSON.stringify(event.model);
        if (event.model && model !== this.model) this.onModel();
        this.model = model;
        this.lanes.expect({ draft: event.draft, "remote draft": event.backs.length });
      }
    }
    // Of several texts, the chat's own, or one as long as there is news of it.
    const of = (id) => progress.findLast((event) => event.id === id);
    const shown = this.own ? of(this.own) : (of(this.shown) ?? progress.at(-1));
    if (shown) {
      this.shown = shown.id;
      showProgress(shown, this.isRunning);
    }
    if (!this.timer && batch.some(({ name }) => name === "spans" || name === "state")) this.draw();
  }

  // There is no speed now.
  showRest() {
    this.isRunning = false;
    put("rate", "–");
    put("ratio", "–");
  }

  // At once if it can be, so that one frame shows all of a batch.
  draw() {
    const wait = this.drawn + DRAW_MS - performance.now();
    this.timer = wait > 0 ? setTimeout(() => this.draw(), wait) : 0;
    if (this.timer) return;
    this.drawn = performance.now();
    this.lanes.draw();
  }
}

function showState({ model, draft, lookup, backs, queue, schedule }) {
  put("target", model ? `${printable(model.name)} · ${gigabytes(model.size)}` : "loading …");
  put("context", model ? `${model.n_ctx.toLocaleString("en")} tokens` : "–");
  put("draft", draft ? printable(draft.name) + (draft.vocabulary === "translated" ? " (translated)" : "") : "none");
  put("lookup", lookup ? "on" : "off");
  put("queue", `${queue.running} running, ${queue.waiting} waiting (at most ${queue.limit})`);
  put("waiting", queue.texts.map(waitingText).join("; ") || "–");
  put("schedule", schedule ? (SCHEDULES[schedule.now] ?? printable(schedule.now)) : "–");
  put("reason", schedule?.reason ? `Since token ${schedule.at_token}: ${printable(schedule.reason)}` : "");
  $("no-backs").hidden = backs.length > 0;
  $("backs-table").hidden = backs.length === 0;
  const cells = (back) => [
    back.round_trip_ms === null ? "–" : `${back.round_trip_ms.toFixed(1)} ms`,
    `${back.accepted} of ${back.verified}`,
    back.in_use ? "yes" : "no",
  ];
  const rows = backs.map((back) => {
    // A back that has no other name is called after its model and address.
    const [model, name] = [printable(back.model), printable(back.name)];
    const short = name.startsWith(`${model} at `) ? name.slice(model.length + 4) : name;
    const first = make("td", { dir: "auto" }, short, make("span", { className: "note", textContent: model, dir: "auto" }));
    return make("tr", {}, first, ...cells(back).map((text) => make("td", { textContent: text })));
  });
  $("backs").replaceChildren(...rows);
}

function waitingText({ id, prompt_tokens: n, pauses }) {
  return `text ${id}, ${pauses ? "paused" : `prompt of ${n.toLocaleString("en")} tokens`}`;
}

function showProgress(event, isRunning) {
  const { tokens_per_s: rate, alone_tokens_per_s: alone, draft, lookup } = event;
  put("alone", decimal(alone));
  if (isRunning) {
    put("rate", decimal(rate));
    put("ratio", rate && alone ? `${(rate / alone).toFixed(2)} ×` : "–");
  }
  showPositions(event.accepted_by_position);
  const parts = [];
  if (draft.verified) parts.push(`draft ${draft.accepted} of ${draft.verified}`);
  if (lookup.verified) parts.push(`lookup ${lookup.accepted} of ${lookup.verified}`);
  put("accepted", parts.length ? `Accepted: ${parts.join(", ")} (this text)` : "No candidates so far.");
}

function showPositions(shares) {
  const list = $("positions");
  while (list.childElementCount > shares.length) list.lastChild.remove();
  shares.forEach((share, i) => {
    const item = list.children[i] ?? list.appendChild(positionItem(i + 1));
    const [number, bar] = item.children;
    const text = String(Math.round(100 * share));
    if (number.textContent === text) return;
    number.textContent = text;
    bar.style.height = `${Math.round(44 * share)}px`;
  });
}

function positionItem(n) {
  return make(
    "li",
    {},
    make("span"),
    make("span", { className: "bar", ariaHidden: "true" }),
    make("span", { className: "hidden", textContent: " % at position " }),
    make("span", { className: "position", textContent: String(n) }),
  );
}

function decimal(value) {
  return value === null || value === undefined ? "–" : value.toFixed(1);
}

function gigabytes(bytes) {
  return bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}
