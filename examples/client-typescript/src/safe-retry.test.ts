import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { newKey, operationKey, quoted } from "./keys.ts";
import { pause, safeRetry } from "./safe-retry.ts";

type Seen = { method: string; path: string; key: string; body: string };
type Answer = (response: ServerResponse) => void;

// A server that gives these answers, the last one for ever, and notes what came.
async function serve(t: TestContext, ...answers: Answer[]) {
  const seen: Seen[] = [];
  const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const key = String(request.headers["idempotency-key"] ?? "");
    seen.push({ method: request.method ?? "", path: request.url ?? "", key, body });
    answers[Math.min(seen.length, answers.length) - 1]?.(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen };
}

const plain = (status: number, headers = {}): Answer => (response) => response.writeHead(status, headers).end();

const problem = (status: number, code: string, retryable: boolean, headers = {}): Answer => (response) =>
  response.writeHead(status, { "Content-Type": "application/problem+json", ...headers }).end(JSON.stringify({ status, code, retryable }));

const cut: Answer = (response) => response.destroy();

const brokenOff: Answer = (response) => {
  response.writeHead(202, { "Content-Length": "1000" });
  response.write('{"key":', () => response.destroy());
};

const accepted: Answer = (response) => response.writeHead(202, { "Job-Status": "pending" }).end('{"key":"k"}');

const submission = (url: string, init: RequestInit = {}) =>
  new Request(`${url}/jobs`, { method: "POST", headers: { "Idempotency-Key": '"k"' }, body: '{"type":"t"}', ...init });

test("the same request is sent again until it is answered", async (t) => {
  const { url, seen } = await serve(t, problem(503, "shutting-down", true), cut, brokenOff, plain(502), accepted);
  const answer = await safeRetry()(submission(url));
  assert.equal(answer.status, 202);
  assert.equal(answer.headers.get("Job-Status"), "pending");
  assert.deepEqual(await answer.json(), { key: "k" });
  assert.equal(seen.length, 5);
  for (const request of seen) assert.deepEqual(request, { method: "POST", path: "/jobs", key: '"k"', body: '{"type":"t"}' });
});

test("Retry-After is obeyed", async (t) => {
  const { url, seen } = await serve(t, problem(429, "rate-limited", true, { "Retry-After": "1" }), accepted);
  const began = performance.now();
  await safeRetry()(submission(url));
  assert.ok(performance.now() - began >= 1000);
  assert.equal(seen.length, 2);
});

const final: Record<string, Answer> = {
  "a mistake": problem(400, "validation-failed", false),
  "another request under the key": problem(422, "idempotency-key-reused", false),
  "a 422, whatever it says": problem(422, "odd", true),
  "a job that another one holds up": problem(409, "business-key-conflict", true),
  "a result that is not there yet": problem(409, "job-not-finished", true),
  "a 409 of somebody else": plain(409),
  "a 503 that does not pass": problem(503, "idempotency-outcome-unknown", false),
  "an internal error": problem(500, "internal", false),
  "an answer that comes back too late": problem(503, "store-unavailable", true, { "Retry-After": "3600" }),
};
for (const [name, answer] of Object.entries(final)) {
  test(`${name} is handed on`, async (t) => {
    const { url, seen } = await serve(t, answer, accepted);
    assert.notEqual((await safeRetry()(submission(url))).status, 202);
    assert.equal(seen.length, 1);
  });
}

test("a request without a key is sent once", async (t) => {
  const { url, seen } = await serve(t, plain(503), accepted);
  assert.equal((await safeRetry()(submission(url, { headers: {} }))).status, 503);
  assert.equal(seen.length, 1);
});

test("a request without a key whose answer is lost is an error", async (t) => {
  const { url, seen } = await serve(t, cut, accepted);
  await assert.rejects(safeRetry()(submission(url, { headers: {} })), TypeError);
  assert.equal(seen.length, 1);
});

const post = (url: string, body?: string) => new Request(url, { method: "POST", body: body ?? null });

for (const path of ["/jobs/order%2F42/cancel", "/executors/t/pause", "/executors/t/resume"]) {
  test(`${path} needs no key, and only there`, async (t) => {
    const { url, seen } = await serve(t, cut, plain(200), cut, plain(200), cut);
    assert.equal((await safeRetry()(post(url + path))).status, 200);
    assert.equal((await safeRetry({ base: `${url}/base/` })(post(`${url}/base${path}`))).status, 200);
    await assert.rejects(safeRetry()(post(`${url}/v1${path}`)), TypeError);
    await assert.rejects(safeRetry()(new Request(url + path, { method: "DELETE" })), TypeError);
    await assert.rejects(safeRetry({ base: `${url}/base` })(post(url + path)), TypeError);
    assert.equal(seen.length, 7);
  });
}

test("a batch is sent again where each item has a key", async (t) => {
  const { url, seen } = await serve(t, cut, plain(207), cut);
  const batch = `${url}/jobs/batch`;
  assert.equal((await safeRetry()(post(batch, '[{"key":"a"},{"key":"b"}]'))).status, 207);
  assert.equal(seen[1]?.body, '[{"key":"a"},{"key":"b"}]');
  for (const body of ['[{"key":"a"},{}]', '[{"key":"a"},{"key":null}]', "[null]", '{"key":"a"}', "", '{"key":"a"}\n{"key":"b"}']) {
    await assert.rejects(safeRetry()(post(batch, body)), TypeError);
  }
  await assert.rejects(safeRetry()(post(`${url}/v1/jobs/batch`, '[{"key":"a"}]')), TypeError);
  assert.equal(seen.length, 9);
});

test("reads need no key, and a 304 stays one", async (t) => {
  const { url, seen } = await serve(t, cut, plain(304, { ETag: '"4"' }));
  const answer = await safeRetry()(new Request(`${url}/jobs/k`, { headers: { "If-None-Match": '"4"' } }));
  assert.deepEqual([answer.status, answer.headers.get("ETag"), seen.length], [304, '"4"', 2]);
});

test("tries are bounded", async (t) => {
  const { url, seen } = await serve(t, problem(503, "store-unavailable", true));
  assert.equal((await safeRetry({ tries: 3 })(submission(url))).status, 503);
  assert.equal(seen.length, 3);
});

test("a try that is not answered is given up", async (t) => {
  const { url, seen } = await serve(t, () => {}, accepted);
  assert.equal((await safeRetry({ timeout: 200 })(submission(url))).status, 202);
  assert.equal(seen.length, 2);
});

test("the signal ends the wait", async (t) => {
  const aborter = new AbortController();
  const { url, seen } = await serve(t, (response) => {
    response.on("close", () => aborter.abort(new Error("enough")));
    plain(503, { "Retry-After": "20" })(response);
  });
  const began = performance.now();
  await assert.rejects(safeRetry()(submission(url, { signal: aborter.signal })), /enough/);
  assert.ok(performance.now() - began < 10_000);
  assert.equal(seen.length, 1);
  await assert.rejects(pause(20_000, aborter.signal), /enough/);
});

test("keys", () => {
  assert.equal(operationKey("invoice", "order-42", "2026-03"), "invoice:order-42:2026-03");
  assert.equal(operationKey("a:b", "c d", "é%", "-._~/@+=", "!'()*"), "a%3Ab:c%20d:%C3%A9%25:-._~/@+=:%21%27%28%29%2A");
  assert.equal(quoted('a"b\\c'), '"a\\"b\\\\c"');
  assert.notEqual(newKey(), newKey());
});
