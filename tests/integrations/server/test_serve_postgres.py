"""`memalpha serve` on a PostgreSQL store over HTTP and MCP, across a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("mcp")
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from serving import running

from memalpha.store.store import MemoryStore

pytestmark = pytest.mark.postgres
BOTH = ("--policy", "scripted:add-all", "--mcp", "--http", "127.0.0.1:0")


def test_http_and_mcp_serve_one_store_across_restarts(postgres_url: str) -> None:
    async def by_mcp(url: str, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
        async with Client(streamable_http_client(f"{url}/mcp")) as client:
            return [(await client.call_tool(name, arguments)).structured_content for name, arguments in requests]

    search = ("memory_search", {"query": "Where does Ana live?"})
    fact = {"category": "semantic", "content": "pet: cat", "metadata": {"by": 1}}
    with running(postgres_url, *BOTH) as server, httpx2.Client(base_url=server.url, timeout=60) as web:
        read, first = asyncio.run(by_mcp(server.url, ("memory_read", {"text": "Ana: I live in Porto."}), search))
        assert [item["code"] for item in read["results"]] == ["inserted"]
        created = web.post("/v1/entries", json=fact)
        assert created.status_code == 201 and web.post("/v1/entries", json=fact).status_code == 200
        path = f"/v1/entries/{created.json()['id'].replace('#', '%23')}"
        assert web.patch(path, json={"content": "pet: dog"}).json()["version"] == 2
        assert web.get(path, params={"as_of": 2}).json()["content"] == "pet: cat"
        hits = web.post("/v1/search", json={"query": "pet", "where": {"by": {"$gte": 1}}}).json()["hits"]
        assert [hit["entry"]["content"] for hit in hits] == ["pet: dog"]
        assert "Traceback" not in server.stop()
    with running(postgres_url, *BOTH) as server, httpx2.Client(base_url=server.url, timeout=60) as web:
        (again,) = asyncio.run(by_mcp(server.url, search))
        assert again["hits"][0]["id"] == first["hits"][0]["id"] and len(again["hits"]) == 2
        assert web.delete(path).json()["content"] == "pet: dog" and web.get(path).status_code == 404
    with MemoryStore.open(postgres_url, create=False) as reopened:
        assert [entry.content for entry in reopened.list()] == ["Ana: I live in Porto."] and reopened.snapshot() == 4
