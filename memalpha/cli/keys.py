"""Commands on the API keys of a served store: keys add, keys list, keys revoke."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalpha.cli.options import AsJson, print_result, to_json_value, visible
from memalpha.errors import ConfigError

if TYPE_CHECKING:
    from memalpha.integrations.server.keys import Key, KeyFile

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="The store that the keys are for; it is not opened.")]
File = Annotated[
    Path | None, typer.Option("--keys", metavar="FILE", help="File of the keys; by default STORE.keys beside the file.")
]


def add(
    store: StoreName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses the key, such as chat-app.")],
    right: Annotated[
        list[str] | None,
        typer.Option(help="read, write, read-with-model, review, erase or admin (all); repeat for more."),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="A namespace, or a prefix that ends in *; repeat for more.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Quota of requests.")] = None,
    bytes_per_day: Annotated[int | None, typer.Option(help="Quota of the bodies of writing requests.")] = None,
    keys: File = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key for `memalpha serve` and print its secret, which is shown only now.

    Example: memalpha keys add ana.db chat-app --right read --right read-with-model --namespace 'user-*'

    Raises:
        ConfigError: A right or a quota is invalid, the name is taken, or the file cannot be written.
    """
    key_file = _open(store, keys, create=True)
    quotas = {"requests_per_minute": requests_per_minute, "bytes_per_day": bytes_per_day}
    key, secret = key_file.add(name, right or ("read",), namespace or ("default",), **quotas)
    text = f"{_format(key)}\nsecret, shown only now: {secret}"
    print_result({**to_json_value(key), "secret": secret}, as_json, text)


def list_(store: StoreName, keys: File = None, as_json: AsJson = False) -> None:
    """List the API keys of STORE with rights, namespaces, quotas and last use.

    Example: memalpha keys list ana.db

    Raises:
        ConfigError: There are no keys, or other users may read them.
    """
    rows = _open(store, keys).list()
    print_result([to_json_value(key) for key in rows], as_json, "\n".join(map(_format, rows)) or "no keys")


def revoke(
    store: StoreName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id of an active key.")],
    keys: File = None,
    as_json: AsJson = False,
) -> None:
    """Revoke an API key. A running server refuses it from the next request on.

    Example: memalpha keys revoke ana.db chat-app

    Raises:
        ConfigError: No active key has the name or id.
    """
    key = _open(store, keys).revoke(name)
    print_result(to_json_value(key), as_json, _format(key))


def find_keys(store: str, file: Path | None) -> KeyFile | None:
    """Open the keys that a server of the store needs: those of `file`, or else `STORE.keys` if it exists."""
    if file is None and ("://" in store or not Path(f"{store}.keys").exists()):
        return None
    return _open(store, file)


def _open(store: str, file: Path | None, *, create: bool = False) -> KeyFile:
    from memalpha.integrations.server.keys import KeyFile

    if file is None and ("://" in store or store == ":memory:"):
        raise ConfigError(
            "keys: name the file of the keys, --keys FILE: this store is no file that it could lie beside"
        )
    return KeyFile(file or Path(f"{store}.keys"), create=create)


def _format(key: Key) -> str:
    quotas = [f"{key.requests_per_minute} requests/min"] if key.requests_per_minute else []
    quotas += [f"{key.bytes_per_day} bytes/day"] if key.bytes_per_day else []
    dates = [f"made {key.created}", f"last used {key.last_used or 'never'}"]
    dates += [f"revoked {key.revoked}"] if key.revoked else []
    parts = (key.id, key.name, ",".join(key.rights), ",".join(key.namespaces), *quotas, *dates)
    return visible("  ".join(parts))


COMMANDS = {"add": add, "list": list_, "revoke": revoke}
