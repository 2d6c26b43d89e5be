// Conversations and settings in the browser's storage. Nothing leaves the browser.

export const INDEX = "duo:conversations";
const ONE = "duo:conversation:";
const SETTINGS = "duo:settings";
const MOST_TITLE = 60;
const NO_ROOM =
  "The browser has no room to save this conversation. It stays until you close the page: export it in the settings, " +
  "or delete other conversations.";
const ROLES = ["user", "assistant"];
const STATES = ["done", "stopped", "length", "failed", "unfinished"];

export const DEFAULTS = {
  system: "",
  temperature: "",
  top_p: "",
  seed: "",
  max_tokens: "",
  colours: true,
  live: null, // null: open where there is room
};

export class Store {
  // `onProblem` gets a sentence when something could not be saved, and "" when it can be again.
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.unsaved = new Map(); // conversations that the storage had no room for
    this.settings = { ...DEFAULTS, ...read(SETTINGS, {}) };
    this.reload();
  }

  create() {
    return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New conversation", messages: [] };
  }

  load(id) {
    return this.unsaved.get(id) ?? checked(read(ONE + id, null), id);
  }

  // Returns whether the list of conversations has changed.
  save(conversation) {
    const first = conversation.messages.find((message) => message.role === "user");
    if (first) conversation.title = titleOf(first.content);
    const entry = entryOf(conversation);
    this.reload();
    const old = this.index.find((other) => other.id === entry.id);
    this.index = old ? this.index.map((other) => (other === old ? entry : other)) : [entry, ...this.index];
    this.unsaved.set(conversation.id, conversation);
    this.flush();
    return old?.title !== entry.title;
  }

  remove(id) {
    this.unsaved.delete(id);
    this.reload();
    this.index = this.index.filter((entry) => entry.id !== id);
    try {
      localStorage.removeItem(ONE + id);
    } catch {
      // Then it was never saved.
    }
    write(INDEX, this.index);
    this.flush();
  }

  // Write what is not saved yet.
  flush() {
    for (const [id, conversation] of this.unsaved) {
      if (write(ONE + id, conversation) && write(INDEX, this.index)) this.unsaved.delete(id);
    }
    this.onProblem(this.unsaved.size ? NO_ROOM : "");
  }

  // Other tabs may have changed other settings.
  change(settings) {
    this.settings = { ...this.settings, ...read(SETTINGS, {}), ...settings };
    write(SETTINGS, this.settings);
  }

  // Read the list of conversations, which other tabs change, too.
  reload() {
    const index = read(INDEX, []);
    const stored = Array.isArray(index) ? index.filter((entry) => typeof entry?.id === "string") : [];
    const others = [...this.unsaved.values()].filter(({ id }) => !stored.some((entry) => entry.id === id));
    this.index = [...others.map(entryOf), ...stored];
  }

  exported() {
    return { duo: 1, conversations: this.index.map(({ id }) => this.load(id)).filter(Boolean) };
  }

  // Add the conversations of an exported document; returns how many. Throws if it is none.
  add(document) {
    if (document?.duo !== 1 || !Array.isArray(document.conversations)) throw new Error("not an export");
    const found = document.conversations.map((one) => checked(one, this.create().id)).filter(Boolean);
    for (const conversation of found.reverse()) this.save(conversation);
    return found.length;
  }
}

function entryOf({ id, title }) {
  return { id, title };
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return Array.from(line.slice(0, 2 * MOST_TITLE)).slice(0, MOST_TITLE).join("") || "New conversation";
}

// A conversation of the storage or a file, or null if it is none.
function checked(value, id) {
  if (!Array.isArray(value?.messages)) return null;
  const messages = value.messages.filter((one) => ROLES.includes(one?.role) && typeof one.content === "string");
  return { id, title: String(value.title ?? ""), messages: messages.map(checkedMessage) };
}

function checkedMessage({ role, content, reasoning, runs, reasoningRuns, toolCalls, state, error, tokens, rate }) {
  return {
    role,
    content,
    reasoning: typeof reasoning === "string" ? reasoning : "",
    runs: runsOf(runs),
    reasoningRuns: runsOf(reasoningRuns),
    toolCalls: Array.isArray(toolCalls) ? toolCalls.filter((call) => typeof call?.function === "object") : [],
    state: STATES.includes(state) ? state : "done",
    error: typeof error === "string" ? error : undefined,
    tokens: Number.isFinite(tokens) ? tokens : undefined,
    rate: Number.isFinite(rate) ? rate : undefined,
  };
}

function runsOf(value) {
  const isRun = (run, i, all) => Array.isArray(run) && "dlt".includes(run[1]) && run[0] > (i ? all[i - 1][0] : 0);
  return Array.isArray(value) && value.every(isRun) ? value : [];
}
