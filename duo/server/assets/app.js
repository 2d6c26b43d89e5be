// The page: connects its parts to its controls.

import { Chat, copy } from "./chat.js";
import { askWithKey, confirmed } from "./dialogs.js";
import { Live } from "./live.js";
import { COARSE, isComposing, isSend } from "./message.js";
import { DEFAULTS, INDEX, Store } from "./store.js";
import { make, printable } from "./text.js";

const CURRENT = "duo:current"; // the conversation of this tab, across reloads
const FIELDS = ["system", "temperature", "top_p", "seed", "max_tokens"];
const [FIRST_WAIT_MS, MOST_WAIT_MS] = [1000, 5000];
const WIDE = matchMedia("(min-width: 68.01rem)");

const $ = (id) => document.getElementById(id);
const input = $("input");
const store = new Store((text) => {
  $("problem").hidden = !text;
  if ($("problem").textContent !== text) $("problem").textContent = text;
});
const chat = new Chat(store, $("scroller"), $("messages"), {
  announce: (text) => ($("announce").textContent = text),
  changed: showList,
  writes: (id) => (live.own = live.lanes.own = id),
  running(isRunning) {
    if (!isRunning) live.own = 0;
    const focused = document.activeElement === $("stop") || document.activeElement === $("send");
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
    if (focused) input.focus();
    else if (isRunning) keepFocus();
  },
});
const live = new Live(connect);
let connecting = false;

// Where the control that had the focus is gone; on a touch screen, the keyboard would open.
function keepFocus() {
  if (document.activeElement === document.body && !COARSE.matches) input.focus();
}

// The model

async function connect() {
  if (connecting) return;
  connecting = true;
  await showModel();
  connecting = false;
}

async function showModel() {
  for (let wait = FIRST_WAIT_MS; ; wait = Math.min(2 * wait, MOST_WAIT_MS)) {
    try {
      const [model] = (await (await askWithKey("/v1/models", { background: true })).json()).data;
      $("model").textContent = `${printable(model.id)} · context of ${model.meta.n_ctx.toLocaleString("en")} tokens`;
      $("model").title = printable(model.id);
      $("send").disabled = false;
      return;
    } catch (error) {
      $("model").textContent = error.message;
      if (error.status === 401) {
        $("send").disabled = false; // sending asks for the key again
        return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    }
  }
}

document.addEventListener("key", connect);

// Conversations

function open(conversation) {
  chat.show(conversation);
  try {
    sessionStorage.setItem(CURRENT, conversation.id);
  } catch {
    // Then a reload begins a new conversation.
  }
  showList();
  togglePanel("nav", false);
  keepFocus();
}

function showList() {
  const current = chat.conversation.id;
  const items = store.index.map(({ id, title }) => {
    const name = printable(title);
    const button = make("button", { type: "button", className: "open", textContent: name, title: name, dir: "auto" });
    if (id === current) button.setAttribute("aria-current", "true");
    button.onclick = () => open(store.load(id) ?? store.create());
    const remove = make("button", { type: "button", className: "delete", textContent: "×", ariaLabel: `Delete ${name}` });
    remove.onclick = () => deleteConversation(id, name);
    return make("li", {}, button, remove);
  });
  $("conversations").replaceChildren(...items);
}

function confirmedDelete(question, name) {
  $("delete-title").textContent = question;
  $("delete-name").textContent = name;
  return confirmed($("delete-dialog"));
}

async function deleteConversation(id, name) {
  if (!(await confirmedDelete("Delete this conversation?", name))) return;
  if (chat.answer?.conversation.id === id) {
    chat.answer.conversation.deleted = true;
    await chat.stop();
  }
  store.remove(id);
  if (chat.conversation.id === id) open(store.create());
  else showList();
  $("new").focus();
}

$("delete-cancel").onclick = () => $("delete-dialog").close();
$("new").onclick = () => {
  open(store.create());
  input.focus();
};

function reload() {
  store.reload();
  showList();
}

// Another tab has changed the list, or all.
addEventListener("storage", (event) => {
  if (event.key === INDEX || event.key === null) reload();
});

// Writing

function send() {
  const text = input.value;
  if (!text.trim() || chat.isRunning || $("send").disabled) return;
  input.value = "";
  resize();
  chat.send(text);
  togglePanel("nav", false);
}

// For browsers without field-sizing.
function resize() {
  if (CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

input.addEventListener("input", resize);
input.addEventListener("keydown", (event) => {
  if (!isSend(event)) return;
  event.preventDefault();
  send();
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").onclick = () => chat.stop();
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || isComposing(event) || document.querySelector("dialog[open]")) return;
  const panel = WIDE.matches ? undefined : ["live", "nav"].find(isOpen); // above the chat
  if (panel) $(`${panel}-toggle`).click();
  else chat.stop();
});
$("messages").addEventListener("click", (event) => {
  const button = event.target.closest(".copy-code");
  if (button) copy(button.closest(".code").querySelector("code").textContent, button);
});
addEventListener("pagehide", () => {
  chat.leaving = true;
  chat.save();
});
addEventListener("pageshow", () => {
  chat.leaving = false;
  reload();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) chat.save();
  else chat.schedule();
});

// Panels and settings

function togglePanel(name, isOpen) {
  if (isOpen && !WIDE.matches) togglePanel(name === "nav" ? "live" : "nav", false);
  document.body.classList.toggle(name, isOpen);
  $(`${name}-toggle`).setAttribute("aria-expanded", String(isOpen));
  if (name === "live") live.open = isOpen;
}

function isOpen(name) {
  return document.body.classList.contains(name);
}

$("nav-toggle").onclick = () => togglePanel("nav", !isOpen("nav"));
$("live-toggle").onclick = () => {
  togglePanel("live", !isOpen("live"));
  store.change({ live: isOpen("live") });
};
$("colours").onchange = () => {
  store.change({ colours: $("colours").checked });
  document.body.classList.toggle("colours", $("colours").checked);
};
$("settings-open").onclick = async () => {
  store.change({}); // read what another tab has changed
  for (const name of FIELDS) $(name).value = store.settings[name] ?? DEFAULTS[name];
  const before = FIELDS.map((name) => $(name).value);
  $("settings-told").textContent = "";
  if (!(await confirmed($("settings")))) return;
  const changed = FIELDS.filter((name, i) => $(name).value !== before[i]);
  store.change(Object.fromEntries(changed.map((name) => [name, $(name).value])));
};
$("delete-all").onclick = async () => {
  const n = store.index.length;
  const name = `${n} ${n === 1 ? "conversation" : "conversations"} in this browser`;
  if (!(await confirmedDelete("Delete all conversations?", name))) return;
  if (chat.answer) chat.answer.conversation.deleted = true;
  await chat.stop();
  for (const { id } of [...store.index]) store.remove(id);
  open(store.create());
  $("settings-told").textContent = "All conversations were deleted.";
};
$("export").onclick = () => {
  const text = JSON.stringify(store.exported());
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })) });
  link.download = "duo-conversations.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
$("import").onclick = () => $("import-file").click();
$("import-file").onchange = async () => {
  let told;
  try {
    const n = store.add(JSON.parse(await $("import-file").files[0].text()));
    told = `${n} ${n === 1 ? "conversation was" : "conversations were"} imported.`;
  } catch {
    told = "This file is not an export of conversations.";
  }
  $("settings-told").textContent = told;
  $("import-file").value = "";
  showList();
};

$("colours").checked = store.settings.colours;
document.body.classList.toggle("colours", store.settings.colours);
togglePanel("live", store.settings.live ?? WIDE.matches);
let current = null;
try {
  current = sessionStorage.getItem(CURRENT);
} catch {
  // A new conversation, then.
}
open((current && store.load(current)) || store.create());
input.focus();
connect();
