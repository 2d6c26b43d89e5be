// One message of a conversation on the page.

import { MarkdownView } from "./markdown.js";
import { appendText, make, printable } from "./text.js";

const STATES = {
  unfinished: "This answer is not complete: the page was closed or reloaded while it was written.",
  stopped: "Stopped.",
  length: "The answer ended because the limit of tokens was reached, or the context was full.",
};

// There, Enter begins a line, and a button sends.
export const COARSE = matchMedia("(pointer: coarse)");

// `actions` has retry(message), edit(message, element) and copy(text, button).
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.element = make("article", { className: `message ${message.role}` });
    if (message.role === "user") this.showUser();
    else this.showAnswer();
  }

  showUser() {
    const { message, actions } = this;
    this.element.ariaLabel = "You";
    const body = make("div", { className: "body", dir: "auto" });
    appendText(body, message.content);
    const edit = button("Edit", () => actions.edit(message));
    const copy = button("Copy", () => actions.copy(message.content, copy));
    this.element.replaceChildren(body, make("div", { className: "actions" }, edit, copy));
  }

  showEdit(send) {
    const text = make("textarea", { value: this.message.content, rows: 3, dir: "auto", ariaLabel: "Edit the message" });
    const close = () => {
      this.showUser();
      this.element.querySelector("button").focus();
    };
    const submit = (event) => {
      event.preventDefault();
      if (text.value.trim()) send(text.value);
    };
    text.addEventListener("keydown", (event) => {
      if (isSend(event)) submit(event);
      if (event.key === "Escape" && !isComposing(event)) {
        event.stopPropagation();
        close();
      }
    });
    const primary = make("button", { className: "primary", textContent: "Send" });
    const buttons = make("div", { className: "buttons" }, primary, button("Cancel", close, "outline"));
    const form = make("form", { className: "edit" }, text, buttons);
    form.addEventListener("submit", submit);
    this.element.replaceChildren(form);
    text.focus();
  }

  showAnswer() {
    const { message, actions } = this;
    this.element.ariaLabel = "Answer";
    this.reasoningText = make("div", { className: "body text" });
    this.reasoning = make("details", {}, make("summary", { textContent: "Reasoning" }), this.reasoningText);
    this.text = make("div", { className: "body text" });
    this.calls = make("div");
    this.state = make("p", { className: "state", dir: "auto" });
    this.facts = make("span", { className: "facts-line" });
    const retry = button("Retry", () => actions.retry(message), "quiet retry");
    const copy = button("Copy", () => actions.copy(message.content, copy));
    this.bar = make("div", { className: "actions" }, retry, copy, this.facts);
    this.element.append(this.reasoning, this.text, this.calls, this.state, this.bar);
    this.reasoningView = new MarkdownView(this.reasoningText);
    this.textView = new MarkdownView(this.text);
    this.update(false);
  }

  // Show what has changed; `running`: more of the answer is to come.
  update(running) {
    const { message } = this;
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) this.reasoningView.update(message.reasoning, message.reasoningRuns);
    if (message.content) this.textView.update(message.content, message.runs);
    this.element.classList.toggle("current", running);
    this.text.classList.toggle("waiting", running && !message.content);
    this.bar.hidden = running;
    this.showCalls();
    const said = running ? "" : (message.error ?? STATES[message.state] ?? "");
    this.state.hidden = !said;
    this.state.replaceChildren();
    appendText(this.state, said);
    this.state.classList.toggle("failed", Boolean(message.error));
    this.facts.textContent = running ? "" : factsOf(message);
  }

  showCalls() {
    const calls = this.message.toolCalls;
    const text = JSON.stringify(calls);
    if (!calls.length || text === this.callsText) return;
    this.callsText = text;
    this.calls.replaceChildren(
      ...calls.map((call) => {
        const code = make("code");
        appendText(code, indented(call.function?.arguments));
        const head = make("div", { className: "code-head", textContent: `Tool call: ${printable(call.function?.name)}` });
        return make("div", { className: "code call" }, head, make("pre", { tabIndex: 0 }, code));
      }),
    );
  }
}

export function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !isComposing(event) && !COARSE.matches;
}

// Whether a key belongs to an input method; Safari says so by its code only.
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

function button(text, onclick, className = "quiet") {
  return make("button", { type: "button", className, textContent: text, onclick });
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return String(json ?? "");
  }
}

function factsOf({ tokens, rate, content, runs }) {
  const facts = [];
  if (tokens) facts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  if (rate) facts.push(`${rate.toFixed(1)} tokens/s`);
  const lengths = { d: 0, l: 0, t: 0 };
  runs.forEach(([end, origin], i) => (lengths[origin] += end - (i ? runs[i - 1][0] : 0)));
  const percent = (n) => Math.round((100 * n) / content.length);
  if (lengths.d) facts.push(`${percent(lengths.d)} % draft`);
  if (lengths.l) facts.push(`${percent(lengths.l)} % lookup`);
  return facts.join(" · ");
}
