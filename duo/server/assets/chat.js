// The conversation that is shown, and the answer that is being written.

import { LeadError, asSentence, eventsOf } from "./api.js";
import { askWithKey } from "./dialogs.js";
import { MessageView } from "./message.js";
import { addOrigins } from "./text.js";

const RENDER_MS = 150; // least time between two renderings; a slow one waits longer, for at most a tenth of a core
const RENDER_SHARE = 10;
const SAVE_MS = 1000;
const NUMBERS = ["temperature", "top_p", "seed", "max_tokens"];

export class Chat {
  // hooks: announce(text), changed() after the list of conversations changed, running(whether), writes(its number).
  constructor(store, scroller, list, hooks) {
    this.store = store;
    this.scroller = scroller;
    this.list = list;
    this.hooks = hooks;
    this.views = new Map();
    this.answer = null; // that is being written
    this.pinned = true; // to the end of the messages
    this.top = 0; // of what is shown of them
    this.leaving = false; // the page is being closed or reloaded, which ends its requests
    this.actions = {
      retry: (message) => this.retry(message),
      edit: (message) => this.edit(message),
      copy,
    };
    scroller.addEventListener("scroll", () => {
      // Only a reader scrolls up; the messages may grow between a scroll and its event.
      const top = scroller.scrollTop;
      const below = scroller.scrollHeight - top - scroller.clientHeight;
      if (top < this.top - 2 && below > 2) this.pinned = false;
      else if (below <= 2 || (below < 48 && top > this.top)) this.pinned = true;
      else if (top < this.top) return; // small steps up add up
      this.top = top;
    }, { passive: true });
    // Before the scroll event that a change of the size causes.
    new ResizeObserver(() => this.toEnd()).observe(scroller);
    this.show(store.create());
  }

  get isRunning() {
    return this.answer !== null;
  }

  show(conversation) {
    // An answer that is being written belongs to the object in memory.
    if (this.answer?.conversation.id === conversation.id) conversation = this.answer.conversation;
    this.conversation = conversation;
    this.views.clear();
    this.list.replaceChildren();
    for (const message of conversation.messages) this.add(message);
    if (this.answer?.conversation === conversation) this.views.get(this.answer.message)?.update(true);
    this.pinned = true;
    this.toEnd();
  }

  add(message) {
    const view = new MessageView(message, this.actions);
    this.views.set(message, view);
    this.list.append(view.element);
  }

  toEnd() {
    if (this.pinned) this.scroller.scrollTop = 1e9;
  }

  send(text) {
    const message = { role: "user", content: text };
    this.conversation.messages.push(message);
    this.add(message);
    return this.generate();
  }

  async retry(message) {
    const { conversation } = this;
    if (!(await this.cut(message))) return;
    const answer = await this.generate();
    const n = conversation.messages.indexOf(answer);
    if (n < 0 || !isEmpty(answer) || isEmpty(message)) return;
    // Nothing came: what there was before is kept.
    if (answer.error) message.error = answer.error;
    conversation.messages[n] = message;
    this.save(conversation);
    if (this.conversation === conversation) this.show(conversation);
  }

  edit(message) {
    this.views.get(message).showEdit(async (text) => {
      if (await this.cut(message)) await this.send(text);
    });
  }

  // Remove a message and those after it; false if meanwhile it was removed or another conversation was opened.
  async cut(message) {
    const { conversation } = this;
    await this.stop();
    const n = conversation.messages.indexOf(message);
    if (n < 0 || this.conversation !== conversation) return false;
    for (const removed of conversation.messages.splice(n)) {
      this.views.get(removed).element.remove();
      this.views.delete(removed);
    }
    return true;
  }

  // End the answer that is being written; what there is of it stays.
  async stop() {
    this.answer?.controller.abort();
    await this.answer?.ended;
  }

  async generate() {
    const { conversation } = this;
    const message = { role: "assistant", content: "", runs: [], reasoning: "", reasoningRuns: [], toolCalls: [] };
    message.state = "unfinished";
    const body = requestOf(conversation.messages, this.store.settings);
    conversation.messages.push(message);
    this.add(message);
    const answer = { conversation, message, controller: new AbortController(), timer: 0, cost: 0 };
    this.answer = answer;
    this.pinned = true;
    this.render();
    this.save();
    this.hooks.running(true);
    const saving = setInterval(() => this.save(), SAVE_MS);
    answer.ended = this.read(answer, body).finally(() => {
      clearInterval(saving);
      clearTimeout(answer.timer);
      if (this.answer === answer) this.answer = null;
      this.save(conversation);
      this.views.get(message)?.update(false);
      this.toEnd();
      this.hooks.running(this.isRunning);
      this.hooks.announce(endOf(message));
    });
    await answer.ended;
    return message;
  }

  async read({ message, controller }, body) {
    const { signal } = controller;
    try {
      const response = await askWithKey("/v1/chat/completions", { body, signal });
      let complete = false;
      for await (const batch of eventsOf(response)) {
        for (const { data } of batch) {
          if (data === "[DONE]") complete = true;
          else this.take(message, JSON.parse(data));
        }
        this.schedule();
      }
      if (!complete) throw new LeadError("The connection to the lead was lost before the answer was complete.");
      if (message.state === "unfinished") message.state = "done";
    } catch (error) {
      await new Promise((resolve) => setTimeout(resolve)); // `leaving` may be set just after the request failed
      if (signal.aborted) message.state = "stopped";
      else if (!this.leaving) {
        message.state = "failed";
        message.error = error instanceof LeadError ? error.message : `The page failed: ${error.message}`;
      }
    }
  }

  take(message, chunk) {
    if (chunk.error) throw new LeadError(asSentence(chunk.error.message));
    if (chunk.usage) message.tokens = chunk.usage.completion_tokens;
    if (chunk.timings) message.rate = chunk.timings.predicted_per_second ?? 0;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason === "length") message.state = "length";
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if ((content || reasoning) && !message.content && !message.reasoning) this.hooks.announce("The answer begins.");
    let sources = chunk.duo?.sources ?? [];
    if (chunk.duo?.id) this.hooks.writes(chunk.duo.id);
    if (reasoning) {
      const start = message.reasoning.length;
      message.reasoning += reasoning;
      sources = addOrigins(message.reasoningRuns, message.reasoning, start, sources);
    }
    if (content) {
      const start = message.content.length;
      message.content += content;
      addOrigins(message.runs, message.content, start, sources);
    }
    for (const call of calls ?? []) addCall(message.toolCalls, call);
  }

  schedule() {
    const { answer } = this;
    if (!answer || answer.timer || document.hidden) return;
    answer.timer = setTimeout(() => {
      answer.timer = 0;
      this.render();
    }, Math.max(RENDER_MS, RENDER_SHARE * answer.cost));
  }

  render() {
    const view = this.views.get(this.answer?.message);
    if (!view) return;
    const began = performance.now();
    view.update(true);
    this.toEnd();
    this.answer.cost = performance.now() - began;
  }

  // Save the conversation of the answer that is being written, or another one.
  save(conversation = this.answer?.conversation) {
    if (conversation && !conversation.deleted && this.store.save(conversation)) this.hooks.changed();
  }
}

function requestOf(messages, settings) {
  // A message without an answer is left out, so that the roles alternate.
  const isAnswered = (i) => i + 1 === messages.length || (messages[i + 1].role === "assistant" && messages[i + 1].content);
  const sent = messages
    .filter(({ role, content }, i) => content && (role === "assistant" || isAnswered(i)))
    .map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) sent.unshift({ role: "system", content: settings.system });
  const body = { messages: sent, stream: true, stream_options: { include_usage: true }, duo: true };
  for (const name of NUMBERS) {
    const value = String(settings[name] ?? "").trim();
    if (value !== "" && Number.isFinite(Number(value))) body[name] = Number(value);
  }
  return body;
}

function isEmpty({ content, reasoning, toolCalls }) {
  return !content && !reasoning && !toolCalls.length;
}

function addCall(calls, delta) {
  const call = (calls[delta.index ?? calls.length] ??= { id: delta.id, function: { name: "", arguments: "" } });
  call.function.name += delta.function?.name ?? "";
  call.function.arguments += delta.function?.arguments ?? "";
}

function endOf(message) {
  if (message.error) return `The answer failed. ${message.error}`;
  if (message.state === "stopped") return "The answer was stopped.";
  return `The answer is complete${message.tokens ? `: ${message.tokens} tokens` : ""}.`;
}

export async function copy(text, button) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copied = copyBySelection(text);
  }
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  button.textContent = copied ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = label), 1500);
}

// Pages that were not fetched from this machine or with HTTPS have no clipboard.
function copyBySelection(text) {
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.className = "hidden";
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}
