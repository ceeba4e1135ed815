// Requests to the server of the explorer.

const BUSY_PAUSE = 700; // milliseconds before a request is sent again to a server that is busy
const BUSY_ATTEMPTS = 4;
const STOPPED = "The server does not answer. If bertjax explore has stopped, start it again and open the address that "
  + "it prints. Your text is still here; the page tries again at your next change.";
const WRONG_TOKEN = "This page belongs to a server that has ended. Open the address that bertjax explore printed last.";

// An error with a message for the user.
export function requestError(message) {
  return Object.assign(new Error(message), { forUser: true });
}

// Whether an error says that a request was replaced by a newer one.
export function isCancelled(error) {
  return error.name === "AbortError";
}

// Functions that send requests. token: of the page's address.
export function makeRequests(token) {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  const client = Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");

  async function send(name, body, signal) {
    const options = {
      method: "POST", signal, cache: "no-store", credentials: "omit",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ client, ...body }),
    };
    for (let attempt = 1; ; attempt += 1) {
      const response = await reach(fetch(`/api/${name}`, options));
      if (response.ok) return response;
      if (response.status === 503 && attempt < BUSY_ATTEMPTS) await pause(BUSY_PAUSE * attempt, signal);
      else throw await refusal(response);
    }
  }

  const json = name => async (body, signal) => {
    const response = await send(name, body, signal);
    return reach(response.json());
  };

  // A map: onLine is called for each line of the stream.
  async function map(body, signal, onLine) {
    const response = await send("map", body, signal);
    for await (const line of streamLines(response.body.getReader())) {
      const message = JSON.parse(line);
      if (message.error) throw requestError(message.error);
      if (message.cancelled) throw new DOMException("cancelled", "AbortError");
      onLine(message);
      if (message.done) return;
    }
    throw unreachable();
  }

  const [answer, attention, examples, python] = ["answer", "attention", "examples", "python"].map(json);
  return { answer, attention, examples, python, map };
}

async function* streamLines(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reach(reader.read());
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    yield* lines.filter(line => line.trim());
    if (done) return;
  }
}

// A promise of the network: what fails there is one line for the user.
async function reach(promise) {
  try {
    return await promise;
  } catch (error) {
    throw isCancelled(error) ? error : unreachable();
  }
}

function unreachable() {
  return Object.assign(requestError(STOPPED), { unreachable: true });
}

async function refusal(response) {
  if (response.status === 401 || response.status === 403) return requestError(WRONG_TOKEN);
  const found = await response.json().catch(() => null);
  if (response.status === 409) return new DOMException("cancelled", "AbortError");
  const message = found?.error ?? `The server answered with status ${response.status}.`;
  return requestError(sentence(message));
}

// A message of the server as a sentence.
export function sentence(text) {
  const start = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("cancelled", "AbortError"));
    }, { once: true });
  });
}

// A function that computes only for the latest argument: a call with the argument of the last call returns its promise,
// another call cancels it. compute(argument, signal): a promise.
export function latestOnly(compute) {
  let key = null, controller = null, promise = null;
  return argument => {
    const text = JSON.stringify(argument);
    if (text === key) return promise;
    controller?.abort();
    controller = new AbortController();
    key = text;
    promise = compute(argument, controller.signal).catch(error => {
      if (key === text) key = null;
      throw error;
    });
    return promise;
  };
}
