// A conversation of the official openai client for Node, whose model searches its memory; prints the replies' texts.
//
//   node search_memory.mjs BASE_URL CONVERSATION     (a JSON object: headers, history, tools, turns, streamed)
import OpenAI from "openai";

const [baseURL, given] = process.argv.slice(2);
const { headers, history, tools, turns, streamed } = JSON.parse(given);
const client = new OpenAI({ baseURL, apiKey: "sk-tests", maxRetries: 0, defaultHeaders: headers });
const model = "scripted-1";

async function ask(messages) {
  if (!streamed) return (await client.chat.completions.create({ model, messages, tools })).choices[0].message;
  const stream_options = { include_usage: true };
  const runner = client.chat.completions.stream({ model, messages, tools, stream_options });
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
console.log(JSON.stringify(texts));
