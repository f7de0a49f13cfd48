// Runs scenarios of the official anthropic client for Node: each line of the input is one, as JSON: baseURL, scenario. It
// is answered by a line with its outcome.
import { createInterface } from "node:readline";
import Anthropic from "@anthropic-ai/sdk";

const tools = [{ name: "read", description: "Reads a file.", input_schema: { type: "object", properties: {} } }];
const base = { model: "claude-opus-4-8", max_tokens: 100 };
const asked = { ...base, tools, messages: [{ role: "user", content: "Grüezi 👋" }] };

const scenarios = {
  message: (client) => client.messages.create(asked),
  stream: (client) => client.messages.stream(asked).finalMessage(),
  count: (client) => client.messages.countTokens({ model: base.model, messages: asked.messages }),
  // Reads files for forty rounds, with its whole history in each request.
  agent: async (client) => {
    const messages = [{ role: "user", content: "Fix the parser. Never touch main.py." }];
    for (let round = 0; round < 40; round++) {
      const { content } = await client.messages.stream({ ...base, tools, messages }).finalMessage();
      const calls = content.filter((block) => block.type === "tool_use");
      const text = `line ${round} of a file. `.repeat(150);
      const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: text }));
      messages.push({ role: "assistant", content }, { role: "user", content: results });
    }
    return messages.length;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { baseURL, scenario } = JSON.parse(line);
  const client = new Anthropic({ baseURL, apiKey: "sk-tests", maxRetries: 0 });
  try {
    console.log(JSON.stringify({ ok: await scenarios[scenario](client) }));
  } catch (error) {
    if (!(error instanceof Anthropic.APIError)) throw error;
    console.log(JSON.stringify({ error: { kind: error.constructor.name, status: error.status, body: error.error } }));
  }
}
