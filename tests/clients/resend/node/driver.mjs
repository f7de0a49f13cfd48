// Has one Node client hold every conversation of cases.py and resend the reply as its users do.
//
//   node driver.mjs BASE_URL CLIENT < plan.json
//
// The plan holds the names of the cases and the constants they share. Nothing is printed: the upstream has seen it.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";
import { readFileSync } from "node:fs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [baseURL, name] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(0, "utf8"));
const apiKey = "sk-tests";
const question = { role: "user", content: plan.question };
const followUp = { role: "user", content: plan.followUp };

// -- openai ------------------------------------------------------------------------------------------------

const tools = [plan.tool];

async function openaiNode(way, model, reply) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, defaultHeaders: { [plan.way]: way } });
  const messages = [question];
  const message = await reply(client, { model, messages, tools });
  messages.push(message);
  for (const call of message.tool_calls ?? []) {
    messages.push({ role: "tool", tool_call_id: call.id, content: plan.result });
  }
  if (!message.tool_calls?.length) messages.push(followUp);
  await client.chat.completions.create({ model, messages, tools });
}

// Users write either; both give the message object that goes back.
const create = async (client, body) => (await client.chat.completions.create(body)).choices[0].message;
const stream = async (client, body) => client.chat.completions.stream(body).finalMessage();

// -- the AI SDK --------------------------------------------------------------------------------------------

const weather = tool({
  description: plan.tool.function.description,
  inputSchema: jsonSchema(plan.tool.function.parameters),
  execute: async () => plan.result,
});

async function aiSdk(way, model, generate) {
  const messages = [question];
  const options = { model, messages, tools: { [plan.tool.function.name]: weather }, maxRetries: 0 };
  const reply = await generate(options);
  messages.push(...reply);
  if (!reply.some((message) => message.role === "tool")) messages.push(followUp);
  await generateText(options);
}

const generated = async (options) => (await generateText(options)).response.messages;

async function streamed(options) {
  const result = streamText({ ...options, onError: () => {} });
  await result.consumeStream();
  return (await result.response).messages;
}

const official = (way, model) => createOpenAI({ baseURL, apiKey, headers: { [plan.way]: way } }).chat(model);
const compatible = (way, model) =>
  createOpenAICompatible({ name: "scripted", baseURL, apiKey, headers: { [plan.way]: way } })(model);

// ----------------------------------------------------------------------------------------------------------

const clients = {
  "openai-node": {
    message: (way, model) => openaiNode(way, model, create),
    stream: (way, model) => openaiNode(way, model, stream),
  },
  "ai-sdk-openai": {
    generateText: (way, model) => aiSdk(way, official(way, model), generated),
    streamText: (way, model) => aiSdk(way, official(way, model), streamed),
  },
  "ai-sdk-openai-compatible": {
    generateText: (way, model) => aiSdk(way, compatible(way, model), generated),
    streamText: (way, model) => aiSdk(way, compatible(way, model), streamed),
  },
};

for (const [way, hold] of Object.entries(clients[name])) {
  for (const model of plan.cases) await hold(way, model);
}
