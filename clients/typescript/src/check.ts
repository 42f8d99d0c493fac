// Uses every kind of call on a running server: `node build/check.js ADDRESS KEY NAMESPACE`.
import assert from "node:assert/strict";
import { createMemoryClient, MemoryError, type MemoryEntry } from "./client.js";

const [address, key, namespace] = process.argv.slice(2);
assert(address && key && namespace, "give ADDRESS, KEY and NAMESPACE");
const memory = createMemoryClient({ address, key, namespace });

const fact = { category: "semantic" as const, content: "Ana's dog: Rex", metadata: { user: "ana" } };
const inserted = await memory.POST("/v1/entries", { body: fact });
const entry = inserted.data as MemoryEntry;
assert.equal(inserted.response.status, 201);
assert.equal(entry.key, "typescript");
const changed = await memory.PATCH("/v1/entries/{id}", {
  params: { path: { id: entry.id } },
  body: { content: "Ana's dog: Max" },
});
assert.equal(changed.data?.content, "Ana's dog: Max");
const past = await memory.GET("/v1/entries/{id}", {
  params: { path: { id: entry.id }, query: { as_of: entry.valid_from } },
});
assert.equal(past.data?.content, "Ana's dog: Rex");
const found = await memory.POST("/v1/search", { body: { query: "dog", where: { user: "ana" } } });
assert.deepEqual(found.data?.hits.map((hit) => hit.entry.content), ["Ana's dog: Max"]);
const read = await memory.POST("/v1/read", { body: { messages: [{ role: "user", content: "I live in Porto." }] } });
assert.equal(read.data?.results[0]?.code, "inserted");
const answer = await memory.POST("/v1/ask", { body: { question: "What is Ana's dog called?" } });
assert.match(answer.data?.answer ?? "", /Max/);
const page = await memory.GET("/v1/entries", { params: { query: { limit: 1 } } });
assert.equal(page.data?.entries.length, 1);
assert(page.data?.next);
const log = await memory.GET("/v1/log", { params: { query: { after: 1, limit: 1 } } });
assert.deepEqual(log.data?.operations.map((line) => line.operation.kind), ["update"]);
await memory.DELETE("/v1/entries/{id}", { params: { path: { id: entry.id } } });
await assert.rejects(memory.GET("/v1/entries/{id}", { params: { path: { id: entry.id } } }), (error: unknown) => {
  assert(error instanceof MemoryError);
  return error.status === 404 && error.code === "unknown_id";
});
const stranger = createMemoryClient({ address, key: "mem_wrong", namespace });
await assert.rejects(stranger.GET("/v1/core"), (error: unknown) => error instanceof MemoryError && error.status === 401);
console.log("9 calls and 2 refusals");
