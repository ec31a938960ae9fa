// The page: what it sends is kept in the tab's sessionStorage before it is sent, so
// that a reload sends the same request with the same key, and gets the same answer.
import { newKey, quoted } from "./keys.ts";
import { connect, follow, granted, inWords, Refused, type Gateway, type Job, type Submission } from "./sekali.ts";

type Invoice = { order_id: string; total: number };
type Operation = { gateway: string; key: string; body: Submission & { payload: Invoice; delay_seconds: number } };

const kept = {
  get: (): Operation | null => JSON.parse(sessionStorage.getItem("operation") ?? "null"),
  set: (operation: Operation) => sessionStorage.setItem("operation", JSON.stringify(operation)),
  drop: () => sessionStorage.removeItem("operation"),
};

function element<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

const form = element<HTMLFormElement>("form");
const field = (name: string) => form.elements.namedItem(name) as HTMLInputElement;
let following = new AbortController();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const operation = kept.get() ?? read();
  kept.set(operation); // before it is sent: from here on it is this operation, whatever happens
  void send(operation);
});
element("again").addEventListener("click", () => {
  const operation = kept.get();
  if (operation) void send(operation);
});
element("another").addEventListener("click", () => {
  following.abort();
  kept.drop();
  show(null);
});

function read(): Operation {
  const payload = { order_id: field("order").value, total: field("total").valueAsNumber };
  const body = { type: "invoice_generate", payload, delay_seconds: field("delay").valueAsNumber };
  return { gateway: field("gateway").value, key: newKey(), body };
}

async function send(operation: Operation): Promise<void> {
  following.abort();
  following = new AbortController();
  const { signal } = following;
  const { key, body } = operation;
  show(operation);
  try {
    const gateway = connect(operation.gateway);
    const answer = await gateway.POST("/jobs", { params: { header: { "Idempotency-Key": quoted(key) } }, body, signal });
    granted(answer);
    element("answer").textContent = answer.response.headers.get("Idempotent-Replayed") === "true" ? "the first one, replayed" : "accepted";
    let last: Job | undefined;
    for await (const job of follow(gateway, key, signal)) showJob((last = job));
    if (last?.status === "succeeded") await showResult(gateway, key, signal);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

async function showResult(gateway: Gateway, key: string, signal: AbortSignal): Promise<void> {
  const value = granted(await gateway.GET("/jobs/{key}/result", { params: { path: { key } }, signal }));
  element("result").hidden = false;
  element("result").textContent = JSON.stringify(value, null, 2);
}

/** The page for the operation, or for none yet. */
function show(operation: Operation | null): void {
  const none = operation === null;
  element("submit").hidden = !none;
  element("again").hidden = element("another").hidden = element("job").hidden = none;
  element("problem").hidden = element("result").hidden = true;
  element<HTMLFieldSetElement>("fields").disabled = !none;
  if (none) return;
  fill(operation);
  element("key").textContent = operation.key;
  element("answer").textContent = "…";
  element("timeline").replaceChildren();
  status("sending", "");
}

function fill({ gateway, body }: Operation): void {
  field("order").value = body.payload.order_id;
  field("total").valueAsNumber = body.payload.total;
  field("delay").valueAsNumber = body.delay_seconds;
  field("gateway").value = gateway;
}

function showJob(job: Job): void {
  status(job.status, job.error && job.status === "failed" ? job.error.detail : `The job ${inWords(job.status)}.`);
  const [line, time, word] = [document.createElement("li"), document.createElement("time"), document.createElement("span")];
  time.textContent = new Date().toLocaleTimeString("en-GB");
  word.textContent = job.outcome ? `${job.status}, ${job.outcome}` : job.status;
  line.append(time, word);
  element("timeline").append(line);
}

function status(word: string, text: string): void {
  element("status").textContent = element("status").dataset["status"] = word;
  element("text").textContent = text;
}

// What was refused for good was not accepted: the form may be corrected. Without an
// answer nobody knows whether it was, and only the same request tells.
function fail(error: unknown): void {
  const why = error instanceof Error ? error.message : String(error);
  if (error instanceof Refused && error.problem?.retryable === false) {
    kept.drop();
    show(null);
    element("problem").textContent = why;
  } else {
    status("unknown", "");
    element("problem").textContent = `No answer (${why}). Send it again: the key is the same.`;
  }
  element("problem").hidden = false;
}

const address = new URLSearchParams(location.search).get("gateway");
if (address) field("gateway").value = address;
const before = kept.get();
if (before) void send(before); // the page was reloaded: the same request again
