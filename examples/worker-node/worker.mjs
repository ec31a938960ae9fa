// A worker: it claims jobs from the gateway, works on them, and says how each one ended.
// Needs Node 18 and nothing else. Write a function per job type and list it in handlers.
import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleepFor } from "node:timers/promises";

const url = process.env.SEKALI_URL ?? "http://127.0.0.1:8080";
const token = process.env.SEKALI_TOKEN; // an API key with the permission work, where auth.mode wants one
const slots = Number(process.env.SLOTS ?? 4); // jobs at the same time
const grace = Number(process.env.GRACE ?? 20) * 1000; // for running jobs after SIGTERM; then they are handed back
const wait = Math.floor(Math.min(20, grace / 1000)); // seconds that a claim waits; none does when jobs are handed back

class Permanent extends Error {} // thrown by a handler: trying again would not help

// Makes a gray image smaller: each square of `by` times `by` pixels becomes its mean.
function thumbnail(payload) {
  const { pixels, by = 2 } = payload ?? {};
  if (!(by >= 1) || !Array.isArray(pixels) || !pixels.every(Array.isArray)) throw new Permanent("not an image");
  const steps = (length) => Array.from({ length: Math.ceil(length / by) }, (_, n) => n * by);
  const mean = (numbers) => Math.floor(numbers.reduce((sum, n) => sum + n, 0) / numbers.length);
  return {
    pixels: steps(pixels.length).map((y) =>
      steps(pixels[y].length).map((x) => mean(pixels.slice(y, y + by).flatMap((row) => row.slice(x, x + by))))),
  };
}

// Stands for work that takes a while. It hands execution.signal on: only so can it be stopped in the middle.
async function sleep(payload, execution) {
  if (!(payload.seconds >= 0)) throw new TypeError("seconds must be a number that is not negative");
  await sleepFor(payload.seconds * 1000, undefined, { signal: execution.signal });
  return { slept: payload.seconds };
}

// A handler that computes for long without an await also holds up the heartbeats: give such work to a worker thread.
const handlers = { thumbnail, sleep };

// Sends one call. It throws when no answer came, or one that says: later. The same call may be sent again, always.
async function post(path, body, signal = AbortSignal.timeout(10_000)) {
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const text = await response.text();
  const later = Math.min(Number(response.headers.get("Retry-After")) || 0, 60) * 1000; // when to ask again
  if ([408, 429].includes(response.status) || response.status >= 500) throw Object.assign(new Error(text), { later });
  return { status: response.status, text, later, document: response.ok ? JSON.parse(text) : undefined };
}

// How long to wait before each repetition: longer and longer, and no two workers alike.
function* pauses() {
  for (let longest = 200; ; longest = Math.min(longest * 2, 5000)) yield longest * (0.5 + Math.random() / 2);
}

// A job that this worker holds, for as long as its lease lasts.
class Execution {
  lost = false; // the job is another's by now, and what comes out of this work is thrown away
  ending = false; // the work is over, and its end is being told
  #stop = new AbortController();

  constructor({ lease_ms, ...document }) {
    Object.assign(this, document); // id, key, type, payload, attempt, fencing_token, lease_token, …
    this.signal = this.#stop.signal; // aborted: the work is to be given up
    this.extend(lease_ms);
  }

  extend(leaseMs) {
    this.third = Math.max(Math.round(leaseMs / 3), 100);
    this.beatAt = performance.now() + this.third;
    this.lapsesAt = performance.now() + leaseMs;
  }

  stop() { this.#stop.abort(); }

  lose(why) {
    this.lost = true;
    this.stop();
    console.log(`${this.id}: the lease is lost: ${why}`);
  }

  call(verb, body, ms = 10_000) {
    return post(`/executions/${this.id}/${verb}`, { lease_token: this.lease_token, ...body }, AbortSignal.timeout(ms));
  }
}

// Another name at every start: what an earlier process held is not ours.
const name = `${hostname().slice(0, 60)}:${process.pid}:${randomBytes(4).toString("hex")}`;
const held = new Map(); // lease token → Execution
const stopping = new AbortController();
let changed = () => {}; // called when a job is let go, and when the worker stops

// Asks for as many jobs as there are free slots, one question after the other.
async function claimAll() {
  let pause = pauses();
  while (!stopping.signal.aborted) {
    const free = slots - held.size;
    if (free === 0) {
      await new Promise((resolve) => { changed = resolve; });
      continue;
    }
    const question = { worker: name, types: Object.keys(handlers), max: Math.min(free, 100), wait_seconds: wait };
    let answer;
    try {
      answer = await post("/executions/claim", question, AbortSignal.timeout((wait + 10) * 1000));
    } catch (why) {
      console.log(`no answer to a claim: ${why.cause ?? why.message}`);
      await sleepFor(Math.max(pause.next().value, why.later ?? 0));
      continue;
    }
    if (answer.status !== 200) { // an unknown type, or a token that may not: asking again changes nothing
      console.error(`the gateway refuses: ${answer.text}`);
      process.exit(2);
    }
    pause = pauses();
    for (const document of answer.document.executions) work(new Execution(document));
    await sleepFor(answer.later); // 0, unless too many wait at the gateway
  }
}

// Does one job, and says how it ended.
async function work(execution) {
  held.set(execution.lease_token, execution);
  let end;
  try {
    if (stopping.signal.aborted) execution.stop(); // it came with the last answer
    execution.signal.throwIfAborted();
    end = ["complete", { result: await handlers[execution.type](execution.payload, execution) }];
    JSON.stringify(end); // a result that is no JSON is a failure as well
  } catch (wrong) {
    end = wrong?.name === "AbortError" && execution.signal.aborted
      ? ["release", {}]
      : ["fail", { error: String(wrong).slice(0, 1000), retryable: !(wrong instanceof Permanent) }];
  }
  execution.ending = true;
  execution.beatAt = performance.now() + execution.third;
  if (!execution.lost) await tell(execution, ...end);
  held.delete(execution.lease_token);
  changed();
}

// Sends the end of an attempt until it is answered: however often it arrives, it counts once.
async function tell(execution, verb, body) {
  for (const pause of pauses()) {
    let answer;
    try {
      answer = await execution.call(verb, body);
    } catch (why) {
      await sleepFor(Math.max(pause, why.later ?? 0));
      continue;
    }
    if ([404, 410].includes(answer.status)) execution.lose(`${verb} came too late`);
    else if (answer.status !== 200 && verb === "complete") { // such as a result over limits.result
      [verb, body] = ["fail", { error: `complete was refused: ${answer.text}`.slice(0, 1000), retryable: false }];
      continue;
    } else if (answer.status !== 200) console.log(`${execution.id}: ${verb} was refused: ${answer.text}`);
    return;
  }
}

// The one timer: a heartbeat for each job when a third of its lease is over.
function beatAll() {
  for (const execution of held.values()) {
    if (performance.now() < execution.beatAt || execution.lost) continue;
    execution.beatAt = performance.now() + execution.third;
    beat(execution);
  }
}

async function beat(execution) {
  let answer;
  try {
    answer = await execution.call("heartbeat", {}, execution.third);
  } catch {
    if (performance.now() > execution.lapsesAt && !execution.ending) // somebody else may have it now
      execution.lose("no heartbeat was answered");
    return;
  }
  if (answer.status === 200) {
    execution.extend(answer.document.lease_ms);
    if (answer.document.cancel_requested) execution.stop();
  } else if (!execution.ending) execution.lose("the heartbeat came too late"); // else it has just ended
}

// Claims no more, lets running jobs end, and hands back what has not ended when the grace is over.
async function drain() {
  stopping.abort();
  changed();
  await allEnded(grace);
  // The answer to a claim may be on its way, and must not be what is handed back now.
  await Promise.race([claims, sleepFor(held.size > 0 ? 5000 : 1000)]);
  for (const execution of held.values()) execution.stop();
  await allEnded(1000);
  const rest = [...held.values()].filter((execution) => !execution.ending); // their handlers do not look at signal
  await Promise.allSettled(rest.map((execution) => execution.call("release", {}, 2000)));
  process.exit(0);
}

async function allEnded(within) {
  const end = performance.now() + within;
  while (held.size > 0 && performance.now() < end) await sleepFor(50);
}

process.once("SIGTERM", drain).once("SIGINT", drain);
setInterval(beatAll, 50);
console.log(`${name} works for ${url}`);
const claims = claimAll();
