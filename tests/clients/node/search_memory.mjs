// Conversations of the official openai client for Node, whose model searches its memory.
//
// Each line of the input is one, as JSON: baseURL, headers, history, tools, turns, streamed. It is answered by a line with
// the replies' texts.
import { createInterface } from "node:readline";
import OpenAI from "openai";

const model = "scripted-1";

async function converse({ baseURL, headers, history, tools, turns, streamed }) {
  const { completions } = new OpenAI({ baseURL, apiKey: "sk-tests", maxRetries: 0, defaultHeaders: headers }).chat;

  async function ask(messages) {
    if (!streamed) return (await completions.create({ model, messages, tools })).choices[0].message;
    const runner = completions.stream({ model, messages, tools, stream_options: { include_usage: true } });
    return (await runner.finalChatCompletion()).choices[0].message;
  }

  const messages = [...history];
  const texts = [];
  for (const turn of [...turns, null]) {
    let reply = await ask(messages);
    if (reply.tool_calls?.length) {
      messages.push(reply, ...reply.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "21" })));
      reply = await ask(messages);
    }
    texts.push(reply.content);
    messages.push(reply, { role: "user", content: turn });
  }
  return texts;
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await converse(JSON.parse(line))));
}
