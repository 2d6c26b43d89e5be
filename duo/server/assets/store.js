// Conversations and settings in the browser's storage. Nothing leaves the browser.

const INDEX = "duo:conversations";
const ONE = "duo:conversation:";
const SETTINGS = "duo:settings";
const MOST_TITLE = 60;
const ROLES = ["user", "assistant"];

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
    const index = read(INDEX, []);
    this.index = Array.isArray(index) ? index.filter((entry) => typeof entry?.id === "string") : [];
  }

  create() {
    return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New conversation", messages: [] };
  }

  load(id) {
    return this.unsaved.get(id) ?? checked(read(ONE + id, null), id);
  }

  save(conversation) {
    const first = conversation.messages.find((message) => message.role === "user");
    if (first) conversation.title = titleOf(first.content);
    const entry = { id: conversation.id, title: conversation.title };
    const others = this.index.filter((other) => other.id !== conversation.id);
    const isNew = others.length === this.index.length;
    this.index = isNew ? [entry, ...others] : this.index.map((other) => (other.id === entry.id ? entry : other));
    const saved = this.write(ONE + conversation.id, conversation) && this.write(INDEX, this.index);
    if (saved) this.unsaved.delete(conversation.id);
    else this.unsaved.set(conversation.id, conversation);
    return isNew;
  }

  remove(id) {
    this.index = this.index.filter((entry) => entry.id !== id);
    this.unsaved.delete(id);
    try {
      localStorage.removeItem(ONE + id);
    } catch {
      // Then it was never saved.
    }
    this.write(INDEX, this.index);
  }

  saveSettings() {
    this.write(SETTINGS, this.settings);
  }

  reload() {
    const index = read(INDEX, []);
    if (Array.isArray(index)) this.index = index;
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

  write(name, value) {
    try {
      localStorage.setItem(name, JSON.stringify(value));
      this.onProblem("");
      return true;
    } catch {
      this.onProblem(
        "The browser has no room to save this conversation. It stays until you close the page: export it in the " +
          "settings, or delete other conversations.",
      );
      return false;
    }
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
  return Array.from(line).slice(0, MOST_TITLE).join("") || "New conversation";
}

// A conversation of the storage or a file, or null if it is none.
function checked(value, id) {
  if (!Array.isArray(value?.messages)) return null;
  const messages = value.messages.filter((one) => ROLES.includes(one?.role) && typeof one.content === "string");
  for (const message of messages) {
    message.runs = runsOf(message.runs);
    message.reasoningRuns = runsOf(message.reasoningRuns);
    message.reasoning = String(message.reasoning ?? "");
    if (!Array.isArray(message.toolCalls)) message.toolCalls = [];
  }
  return { id, title: String(value.title ?? ""), messages };
}

function runsOf(value) {
  const isRun = (run, i, all) => Array.isArray(run) && run[0] > (i ? all[i - 1][0] : 0);
  return Array.isArray(value) && value.every(isRun) ? value : [];
}
