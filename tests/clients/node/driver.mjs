// Runs one scenario of the official openai client for Node against a base URL and prints its outcome as JSON.
//
//   node driver.mjs BASE_URL SCENARIO
//
// A scenario that must be seen in the middle prints a line before its last one; the test reads line by line.
import OpenAI, { toFile } from "openai";

const [baseURL, scenario] = process.argv.slice(2);
const client = new OpenAI({
  baseURL,
  apiKey: "sk-tests",
  maxRetries: 0,
  defaultHeaders: { "X-Condenser-Session": "node-tests", "X-Condenser-Strategy": "mask+half-window" },
});
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
      break; // leaving the loop aborts the request; the process stays until the test lets it go
    }
    await new Promise((resolve) => process.stdin.once("data", resolve));
    process.stdin.destroy();
    return "left";
  },
  upload: async () => {
    const file = await toFile(Buffer.from([0, 255, 10, 13]), "b.bin");
    return client.files.create({ file, purpose: "user_data" });
  },
  responses: async () => (await client.responses.create({ model, input: "hi" })).output_text,
};

try {
  print({ ok: await scenarios[scenario]() });
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  const { status, code, message } = error;
  const retryAfter = error.headers?.get("retry-after") ?? null;
  print({ error: { kind: error.constructor.name, status, code, message, retryAfter, body: error.error } });
}
