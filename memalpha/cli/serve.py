"""The command `serve`: a store and its writer for other programs, by MCP and HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memalpha.cli.store import EmbedderName, Namespace, SchemaName
from memalpha.errors import ConfigError


def serve(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store's file, or a postgresql:// URL.")],
    policy: Annotated[
        str | None, typer.Option(help="The writer: a run, a directory, a hub id, tiny, scripted:heuristic.")
    ] = None,
    mcp: Annotated[bool, typer.Option("--mcp", help="MCP: on stdin and stdout, or at /mcp with --http.")] = False,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The HTTP API, such as 127.0.0.1:8765 (port 0: any).")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token that requests need; or in MEMALPHA_TOKEN."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Search, list and ask alone; no policy needed.")
    ] = False,
    size: Annotated[int, typer.Option("--chunk", min=1, help="Longest piece read at once, in characters.")] = 4000,
    schema: SchemaName = None,
    embedder: EmbedderName = None,
    namespace: Namespace = "default",
) -> None:
    """Serve STORE and a writer to other programs.

    With --mcp alone as an MCP server on stdin and stdout, with --http as an HTTP API, with both the two of them at one
    address. What is served is one namespace, fixed here. Off this machine --http needs a token. Ctrl-C ends it.

    Example: memalpha serve ana.db --policy tiny --mcp --http 127.0.0.1:8765
    """
    from memalpha.integrations.server.run import address_of, check_open, quiet_stdout, serve_http, serve_stdio, token_of
    from memalpha.integrations.server.service import MemoryService

    if http is None and not mcp:
        raise ConfigError("serve: say --mcp, --http HOST:PORT, or both")
    if http is None and token_file is not None:
        raise ConfigError("token-file: on stdin and stdout nobody is asked for one; give --http too")
    address = None if http is None else address_of(http)
    token = None if http is None else token_of(token_file)
    if address is not None:
        check_open(address[0], token)
    if policy is None and not read_only:
        raise ConfigError("policy: say who writes, --policy RUN or MODEL, or --read-only")
    with quiet_stdout():  # whatever a model library has to say while it loads
        from memalpha.policy.base import load_policy
        from memalpha.store.store import MemoryStore

        writer = None if policy is None else load_policy(policy)
        memory = MemoryStore.open(store, schema, embedder, namespace, create=not read_only)
    service = MemoryService(memory, writer, chunk=size, read_only=read_only)
    if address is None:
        serve_stdio(service)
    else:
        serve_http(service, address, token=token, mcp=mcp, about=repr(memory))


COMMANDS = (serve,)
