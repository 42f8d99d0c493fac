"""Send what schemathesis makes of the API's description with keys that may and keys that may not.

    python eval/reach/serving_schema.py --examples 60

The store and its keys are those of `serving_leaks.py`, with fewer. Each case of each operation (valid and invalid
parameters and bodies) is sent with: a key and a namespace of its own, the key and a namespace of somebody else, a key
that may only read, a broken key, a revoked key, no key. The answer to the first must be as the description says it; a
schema cannot tell which filters and ids are valid, so whether valid data are accepted is left out. The others must be
refused: 401 without a valid key, 403 beyond its rights. 400, 404, 405, 413, 415, 422 and 429 count as refused, too,
where a request is wrong in itself. No answer may be 500 or above, or hold a secret that the key does not cover.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser
from serving_leaks import EACH, SECRET, TOKEN, World, name_of

KEYS, OWNER, OTHER, REVOKED = 60, 1, 2, 50
WRITES = ("POST /v1/entries", "PATCH /v1/entries/{id}", "DELETE /v1/entries/{id}", "PUT /v1/core", "POST /v1/read")
REFUSALS = {400, 401, 403, 404, 405, 413, 415, 422, 429}


def senders(world: World, reader: str) -> dict[str, tuple[str | None, str, int | None]]:
    """Return key, namespace and covered owner by kind of sender.

    Args:
        world: Store and keys.
        reader: Key that may read the namespaces of `OWNER`.
    """
    own, foreign = name_of(OWNER * EACH), name_of(OTHER * EACH)
    key = world.keys[OWNER]
    return {
        "own": (key, own, OWNER),
        "foreign namespace": (key, foreign, None),
        "reader": (reader, own, OWNER),
        "broken key": (key[:-1], own, None),
        "revoked key": (world.keys[REVOKED], name_of(REVOKED * EACH), None),
        "no key": (None, own, None),
    }


def run(folder: Path, examples: int) -> dict[str, Any]:
    """Send all cases; return counts and faults.

    Args:
        folder: Empty folder.
        examples: Cases of each operation.
    """
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.config import SchemathesisConfig
    from schemathesis.core.failures import Failure, FailureGroup
    from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

    from memalpha.integrations.server.http import http_app
    from memalpha.integrations.server.keys import KeyFile
    from memalpha.integrations.server.service import MemoryService
    from memalpha.policy.load import load_policy
    from memalpha.store.store import MemoryStore

    world = World(folder, KEYS)
    key_file = KeyFile(world.key_path)
    names = [f"user-{OWNER}-*", f"team-{OWNER}/*"]
    reader = key_file.add("reader", ["read"], names)[1]
    service = MemoryService(MemoryStore.open(world.path, durability="normal"), load_policy("scripted:add-all"))
    app = http_app(service, token=TOKEN, keys=key_file, local=False)
    config = SchemathesisConfig.from_dict({"generation": {"allow-x00": False}})
    admin = {"Authorization": f"Bearer {TOKEN}"}
    api = schemathesis.openapi.from_asgi("/v1/openapi.json", app, config=config, headers=admin)
    statuses: dict[str, Counter[int]] = {name: Counter() for name in senders(world, reader)}
    faults: list[str] = []

    def send(case: Any, kind: str, key: str | None, namespace: str, owner: int | None) -> None:
        headers = {"Memalpha-Namespace": quote(namespace, safe="")}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        for name in [name for name in case.headers if name.lower() in ("authorization", "memalpha-namespace")]:
            del case.headers[name]
        label = f"{kind}: {case.operation.label}"
        response = case.call(headers=headers)
        status = response.status_code
        statuses[kind][status] += 1
        if status >= 500:
            faults.append(f"{label}: {status} {response.text[:200]}")
        is_write = case.operation.label in WRITES or case.operation.label.startswith("DELETE")
        must_refuse = (owner is None or (kind == "reader" and is_write)) and case.operation.label != "GET /v1/health"
        if must_refuse and status not in REFUSALS:
            faults.append(f"{label}: {status}, not refused")
        sent = str(case.path_parameters).encode() + str(case.query).encode() + str(case.body).encode()
        for secret in set(SECRET.findall(response.content)):
            if secret not in sent and not world.covers(owner, world.owners[secret]):
                faults.append(f"{label}: leaks {secret!r}")
        if kind == "own":
            try:
                case.validate_response(response, excluded_checks=[ignored_auth, positive_data_acceptance])
            except (Failure, FailureGroup) as error:
                faults.append(f"{label}: {str(error)[:400]}")

    operations = [result.ok() for result in api.get_all_operations()]
    for operation in operations:
        relaxed = list(HealthCheck)

        @settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=relaxed)
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            for kind, (key, namespace, owner) in senders(world, reader).items():
                send(case, kind, key, namespace, owner)

        check()
        print(operation.label, sum(counts.total() for counts in statuses.values()), len(faults), flush=True)
    return {
        "operations": len(operations),
        "requests": sum(counts.total() for counts in statuses.values()),
        "faults": len(faults),
        "first faults": faults[:20],
        "statuses": {kind: dict(sorted(counts.items())) for kind, counts in statuses.items()},
    }


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    lines = [
        "# The API's description, with keys that may and keys that may not",
        "",
        "```",
        record["command"],
        "```",
        "",
    ]
    lines += ["`eval/reach/serving_schema.py` says what is sent and what is a fault.", ""]
    lines += ["| operations | requests | faults |", "|---|---|---|"]
    lines += [f"| {record['operations']} | {record['requests']:,} | {record['faults']} |", ""]
    lines += ["| sender | answers |", "|---|---|"]
    for kind, counts in record["statuses"].items():
        lines.append(f"| {kind} | {', '.join(f'{count:,} x {status}' for status, count in counts.items())} |")
    lines += ["", *[f"- {fault}" for fault in record["first faults"]]]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Run, record and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--examples", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = {"command": " ".join(["python", *sys.argv]), **run(Path(folder), options.examples)}
    (options.results / "serving-schema.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.results / "serving-schema.md").write_text(page(record))
    print(json.dumps(record))


if __name__ == "__main__":
    main()
