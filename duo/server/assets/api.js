// Requests to the lead that served this page. The key stays in this tab's session.

const KEY = "duo:key";

// An error of the lead or of the connection, in words for the user.
export class LeadError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch {
  // Without session storage, the key is asked for on each visit.
}

export function setKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // As above.
  }
}

export const hasKey = () => key !== "";

// Send a request; throws LeadError unless the answer is a success. AbortError is passed on.
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store", credentials: "omit" };
  let response;
  try {
    response = await fetch(path, { ...options, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new LeadError("The lead does not answer. Is it running?");
  }
  if (response.ok) return response;
  let message = `The lead answered with status ${response.status}.`;
  try {
    message = asSentence((await response.json()).error.message);
  } catch {
    // A proxy in between has errors of its own form.
  }
  throw new LeadError(message, response.status);
}

export function asSentence(message) {
  const text = String(message).trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// The server-sent events of a response as {name, data}, in batches of those that came together. Linear in their size.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of a line that is not complete
  let event = { name: "message", data: "" };
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const batch = [];
      let from = 0;
      for (let end = value.indexOf("\n"); end >= 0; end = value.indexOf("\n", from)) {
        parts.push(value.slice(from, end));
        from = end + 1;
        const line = parts.join("").replace(/\r$/, "");
        parts = [];
        if (line.startsWith("data:")) event.data += (event.data && "\n") + line.slice(5).trimStart();
        else if (line.startsWith("event:")) event.name = line.slice(6).trim();
        else if (line === "" && event.data) {
          batch.push(event);
          event = { name: "message", data: "" };
        }
      }
      if (from < value.length) parts.push(value.slice(from));
      if (batch.length) yield batch;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new LeadError("The connection to the lead was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
