// A receiver that does each job once, however often it is asked: the effect, a
// receipt, is a file that is named after the job.
import { createHash, randomUUID } from "node:crypto";
import { link, mkdir, open, readFile, unlink } from "node:fs/promises";
import { createServer } from "node:http";

const folder = process.env.RECEIPTS ?? "receipts";
const [host, port] = (process.env.LISTEN ?? "127.0.0.1:9090").split(":");

// Makes the whole file or nothing, and only if there is none: of two attempts at
// the same time, one gets false.
async function write(name, text) {
  const draft = `${folder}/draft-${randomUUID()}`;
  await use(draft, "wx", (file) => file.writeFile(text));
  try {
    await link(draft, name);
  } catch (error) {
    if (error.code !== "EEXIST") throw error;
    return false;
  } finally {
    await unlink(draft);
  }
  await use(folder, "r");
  return true;
}

// What was done is on the disk before the answer: afterwards nobody asks again.
async function use(path, flags, work = async () => {}) {
  const opened = await open(path, flags, 0o600);
  await work(opened).then(() => opened.sync()).finally(() => opened.close());
}

async function receive(request, response) {
  for await (const _ of request); // the job
  const key = request.headers["idempotency-key"]; // the same on every attempt
  if (!key) return response.writeHead(400).end("send an Idempotency-Key\n");
  const name = `${folder}/${createHash("sha256").update(key).digest("hex")}.json`;
  // A GET asks what became of the job (reconcile_url).
  const made = request.method !== "GET" && await write(name, JSON.stringify({ receipt: randomUUID() }));
  const answer = await readFile(name).catch((error) => { if (error.code !== "ENOENT") throw error; });
  if (!answer) return response.writeHead(404).end("not done\n");
  response.writeHead(200, { "Content-Type": "application/json", "Idempotent-Replayed": String(!made) });
  response.end(answer);
}

await mkdir(folder, { recursive: true, mode: 0o700 });
const server = createServer((request, response) =>
  receive(request, response).catch(() => (response.headersSent ? response.destroy() : response.writeHead(503).end("try again\n"))));
server.listen(Number(port), host, () => console.log(`listening on http://${host}:${server.address().port}`));
