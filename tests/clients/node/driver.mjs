// Runs scenarios of the official openai client for Node: each line of the input is one, as JSON: baseURL, scenario. It is
// answered by a line with its outcome.
//
// A scenario that must be seen in the middle prints a line before its last one; the test reads line by line.
import { createInterface } from "node:readline";
import OpenAI, { toFile } from "openai";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let client;
const model = "scripted-1";
const messages = [{ role: "user", content: "Grüezi 👋" }];
const base = { model, messages };

const print = (value) => console.log(JSON.stringify(value));
const chat = (more, options) => client.chat.completions.create({ ...base, ...more }, options);

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const scenarios = {
  completion: () => chat({}),
  stream: async () => {
    const stream = await chat({ stream: true, stream_options: { include_usage: true } });
    const texts = [];
    let usage = null;
    for await (const chunk of stream) {
      const text = chunk.choices[0]?.delta?.content;
      if (text) texts.push(text);
      if (texts.length === 1 && text) print({ first: text });
      usage = chunk.usage ?? usage;
    }
    return { text: texts.join(""), usage };
  },
  retry: () => chat({}, { maxRetries: 2 }),
  broken_stream: async () => collect(await chat({ stream: true })),
  cancel: async () => {
    const stream = await chat({ stream: true });
    for await (const chunk of stream) {
      print({ first: chunk.choices[0].delta });
      break; // leaving the loop aborts the request; nothing else happens until the test says so
    }
    await lines.next();
    return "left";
  },
  upload: async () => {
    const file = await toFile(Buffer.from([0, 255, 10, 13]), "b.bin");
    return client.files.create({ file, purpose: "user_data" });
  },
  responses: async () => (await client.responses.create({ model, input: "hi" })).output_text,
};

for await (const line of lines) {
  const { baseURL, scenario } = JSON.parse(line);
  const defaultHeaders = { "X-Condenser-Session": "node-tests", "X-Condenser-Strategy": "mask+half-window" };
  client = new OpenAI({ baseURL, apiKey: "sk-tests", maxRetries: 0, defaultHeaders });
  try {
    print({ ok: await scenarios[scenario]() });
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const { status, code, message } = error;
    const retryAfter = error.headers?.get("retry-after") ?? null;
    print({ error: { kind: error.constructor.name, status, code, message, retryAfter, body: error.error } });
  }
}
