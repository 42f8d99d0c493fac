"""The command serve: a store and its writer for other programs, over MCP and HTTP; and its keys: add, list, revoke."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from memalpha.cli.options import (
    Result,
    load_policy,
    parse_reader_settings,
    parse_store_writer,
    parse_trust,
    split_settings,
    to_json_value,
    visible,
)
from memalpha.errors import ConfigError

if TYPE_CHECKING:
    from memalpha.integrations.server.auth import Key, KeyFile


def serve(
    store: str,
    policy: str | None = None,
    mcp: bool = False,
    http: Annotated[str | None, Option(metavar="HOST:PORT")] = None,
    token_file: Annotated[Path | None, Option(metavar="FILE")] = None,
    keys: Path | None = None,
    allow_host: Annotated[list[str] | None, Option(metavar="NAME")] = None,
    log_requests: bool = False,
    otel: bool = False,
    page_edits: bool = False,
    read_only: bool = False,
    chunk_size: int = 4000,
    instructions: str | None = None,
    settings: list[str] | None = None,
    schema: str | None = None,
    embedder: str | None = None,
    namespace: str = "default",
) -> None:
    """Serve STORE and a writer to other programs.

    --mcp serves MCP on stdin and stdout, --http serves an HTTP API; both together share one address. One namespace is
    served, chosen here; keys (`memalpha keys`) may have others. An address that other machines can reach needs a token
    or keys. Ctrl-C stops the server.

    Example: memalpha serve ana.db --policy tiny --mcp --http 127.0.0.1:8765

    Args:
        policy: The writer: a run, a directory, a hub id, smol, tiny, add_all.
        mcp: Serve MCP on stdin and stdout, or at /mcp with --http.
        http: Serve HTTP, as on 127.0.0.1:8765 (port 0: any free one).
        token_file: File with the token that requests need (or set MEMALPHA_TOKEN).
        keys: Keys of `memalpha keys`; by default STORE.keys, if there is one.
        allow_host: Host name that a proxy in front passes on; repeat for more.
        log_requests: Write one JSON line for each HTTP request to stderr.
        otel: Send spans of requests, store and model by OpenTelemetry (see OTEL_*).
        page_edits: Let readers of the page edit and review, by the rights of their keys.
        read_only: Allow only search, list and ask; no policy needed.
        chunk_size: Maximum characters that the writer reads at once.
        settings: A key of AgentConfig, as in a run's agent, reader.KEY of ReaderConfig or trust.KEY of TrustConfig.

    Raises:
        ConfigError: Options exclude each other, or an address does not fit.
        PolicyError: The writer cannot be loaded.
        StoreError: The store cannot be opened.
    """
    from memalpha.integrations.server import run as server
    from memalpha.integrations.server.service import MemoryService

    if http is None and not mcp:
        raise ConfigError("serve: choose --mcp, --http HOST:PORT, or both")
    web_options = {"token-file": token_file, "keys": keys, "allow-host": allow_host, "log-requests": log_requests}
    for name, value in {**web_options, "page-edits": page_edits, "otel": otel}.items():
        if http is None and value:
            raise ConfigError(f"{name}: stdin and stdout have no requests over HTTP; add --http")
    address, hosts, key_file, token = None, frozenset(), None, None
    if http is not None:
        address, hosts = server.parse_address(http), server.check_hosts(allow_host or ())
        key_file, token = find_keys(store, keys), server.read_token(token_file)
        server.check_token_needed(address[0], (token or key_file) is not None, hosts)
    reader_pairs, other_pairs = split_settings(settings, "reader")
    trust_pairs, writer_pairs = split_settings(other_pairs, "trust")
    trust = parse_trust(trust_pairs)
    config, reader = parse_store_writer(writer_pairs, instructions), parse_reader_settings(reader_pairs)
    if read_only and page_edits:
        raise ConfigError("page-edits: a memory served read-only is not edited; leave one of them out")
    if read_only and (instructions is not None or trust_pairs or writer_pairs):
        name = "instructions" if instructions is not None else f"--set {[*trust_pairs, *writer_pairs][0]}"
        raise ConfigError(f"{name}: a memory served read-only has no writer; leave them out")
    if reader is not None and policy is None:
        raise ConfigError(f"--set {reader_pairs[0]}: a setting of the model that answers: name it with --policy")
    if policy is None and not read_only:
        raise ConfigError("policy: name the writer, --policy RUN or MODEL, or use --read-only")
    with server.quiet_stdout():  # model libraries print while they load
        from memalpha.agent.agent import default_reader, prompted_config
        from memalpha.store.store import MemoryStore

        writer = None if policy is None else load_policy(policy)
        if writer is not None:
            new_schema = None if read_only else schema or config.memory_schema
            config = prompted_config(config, writer, new_schema)  # before a store is created
            default_reader(writer, config, reader)
        is_file_read_only = read_only and "://" not in store
        memory = MemoryStore.open(store, schema, embedder, namespace, create=not read_only, read_only=is_file_read_only)
    service = MemoryService(
        memory, writer, chunk_size=chunk_size, read_only=read_only, config=config, reader=reader, trust=trust
    )
    if address is None:
        server.serve_stdio(service)
    else:
        from memalpha.integrations.server.http import HttpApp
        from memalpha.integrations.server.mcp import mcp_server
        from memalpha.report.memory_page import render_memory_page

        app = HttpApp(
            service,
            token=token,
            keys=key_file,
            find_keys=partial(find_keys, store, None),
            local=server.is_loopback(address[0]),
            hosts=hosts,
            log_requests=log_requests,
            mcp=mcp_server(service) if mcp else None,
            page=render_memory_page,
            page_edits=page_edits,
        )
        server.serve_http(app, address, otel=otel, description=repr(memory))


def add_key(
    store: str,
    name: str,
    right: list[str] | None = None,
    namespace: list[str] | None = None,
    requests_per_minute: int | None = None,
    bytes_per_day: int | None = None,
    keys: Path | None = None,
) -> Result:
    """Make an API key for `memalpha serve` and print its secret, which is shown only now.

    Example: memalpha keys add ana.db chat-app --right read --right read-with-model --namespace 'user-*'

    Args:
        store: The store that the keys are for; it is not opened.
        name: Who uses the key, such as chat-app.
        right: read, write, read-with-model, review, erase or admin (all); repeat for more.
        namespace: A namespace, or a prefix that ends in *; repeat for more.
        requests_per_minute: Quota of requests.
        bytes_per_day: Quota of the bodies of writing requests.

    Raises:
        ConfigError: A right or a quota is invalid, the name is taken, or the file cannot be written.
    """
    key_file = _open_keys(store, keys, create=True)
    quotas = {"requests_per_minute": requests_per_minute, "bytes_per_day": bytes_per_day}
    key, secret = key_file.add(name, right or ("read",), namespace or ("default",), **quotas)
    text = f"{_format_key(key)}\nsecret, shown only now: {secret}"
    return Result({**to_json_value(key), "secret": secret}, text)


def list_keys(store: str, keys: Path | None = None) -> Result:
    """List the API keys of STORE with rights, namespaces, quotas and last use.

    Example: memalpha keys list ana.db

    Args:
        store: The store that the keys are for; it is not opened.

    Raises:
        ConfigError: There are no keys, or other users may read them.
    """
    rows = _open_keys(store, keys).list()
    return Result(rows, "\n".join(map(_format_key, rows)) or "no keys")


def revoke_key(store: str, name: str, keys: Path | None = None) -> Result:
    """Revoke an API key. A running server refuses it from the next request on.

    Example: memalpha keys revoke ana.db chat-app

    Args:
        store: The store that the keys are for; it is not opened.
        name: Name or id of an active key.

    Raises:
        ConfigError: No active key has the name or id.
    """
    key = _open_keys(store, keys).revoke(name)
    return Result(key, _format_key(key))


def find_keys(store: str, file: Path | None) -> KeyFile | None:
    """Open the keys that a server of the store needs: those of `file`, or else `STORE.keys` if it exists."""
    if file is None and ("://" in store or not Path(f"{store}.keys").exists()):
        return None
    return _open_keys(store, file)


def _open_keys(store: str, file: Path | None, *, create: bool = False) -> KeyFile:
    from memalpha.integrations.server.auth import KeyFile

    if file is None and ("://" in store or store == ":memory:"):
        raise ConfigError(
            "keys: name the file of the keys, --keys FILE: this store is no file that it could lie beside"
        )
    return KeyFile(file or Path(f"{store}.keys"), create=create)


def _format_key(key: Key) -> str:
    quotas = [f"{key.requests_per_minute} requests/min"] if key.requests_per_minute else []
    quotas += [f"{key.bytes_per_day} bytes/day"] if key.bytes_per_day else []
    dates = [f"made {key.created}", f"last used {key.last_used or 'never'}"]
    dates += [f"revoked {key.revoked}"] if key.revoked else []
    parts = (key.id, key.name, ",".join(key.rights), ",".join(key.namespaces), *quotas, *dates)
    return visible("  ".join(parts))
