// The dialog for the key, and requests that open it when the lead wants another key.

import { LeadError, ask, hasKey, setKey } from "./api.js";

const dialog = document.querySelector("#key-dialog");
const input = document.querySelector("#key");
const wrong = document.querySelector("#key-wrong");
let answer = null; // a promise while the dialog is open: whether there is a key
let cancelled = false; // the last one

// In the background, the dialog is not opened again after it was cancelled.
export async function askWithKey(path, options = {}) {
  while (true) {
    try {
      return await ask(path, options);
    } catch (error) {
      if (error.status !== 401) throw error;
    }
    if (!answer && cancelled && options.background) throw new LeadError("This lead needs a key.", 401);
    answer ??= openKey();
    if (!(await answer)) throw new LeadError("This lead needs a key.", 401);
  }
}

function openKey() {
  wrong.textContent = hasKey() ? "This key is wrong, or no longer valid." : "";
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      answer = null;
      cancelled = dialog.returnValue !== "key";
      resolve(!cancelled);
      if (!cancelled) document.dispatchEvent(new Event("key"));
    }, { once: true });
    dialog.returnValue = "";
  });
}

document.querySelector("#key-cancel").onclick = () => dialog.close();
dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const value = input.value.trim();
  if (!value) {
    wrong.textContent = "Enter the key.";
    return;
  }
  wrong.textContent = "";
  setKey(value);
  try {
    await ask("/v1/models");
  } catch (error) {
    if (error.status === 401) {
      wrong.textContent = "This key is wrong. Try again.";
      input.select();
      return;
    }
    // Whatever else is wrong, the request that wanted the key will say so.
  }
  dialog.close("key");
});

// Open a dialog with a form; resolves to whether it was submitted.
export function confirmed(element) {
  element.returnValue = "";
  element.showModal();
  const form = element.querySelector("form");
  form.onsubmit = (event) => {
    event.preventDefault();
    element.close("yes");
  };
  return new Promise((resolve) => {
    element.addEventListener("close", () => resolve(element.returnValue === "yes"), { once: true });
  });
}
