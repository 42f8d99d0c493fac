"""The TypeScript client from the OpenAPI file against a real server: `python eval/reach/typescript_client.py`.

Writes the description of a running server, generates the types from it (openapi-typescript), compiles the client (tsc),
and runs `check.ts` with node. Needs node and npm, which fetches the packages that clients/typescript/package.json pins.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2

from memalpha.integrations.server.keys import KeyFile

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"


def run(folder: Path, *command: str) -> str:
    """Run a command and return its output; print it and raise if it fails."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode:
        print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"{' '.join(command)}: exit {result.returncode}")
    return result.stdout.strip()


def main() -> None:
    """Generate, compile and run the client, and write the record."""
    arguments = make_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name) / "client", Path(name) / "ana.db"
        shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "build", "schema.ts"))
        keys = KeyFile(Path(f"{store}.keys"), create=True)
        secret = keys.add("typescript", ["admin"], ["bén/#1"])[1]
        keys.close()
        command = [
            sys.executable,
            "-m",
            "memalpha",
            "serve",
            str(store),
            "--policy",
            "add_all",
            "--http",
            "127.0.0.1:0",
        ]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            found = re.search(r"at (http://\S+?)/v1", server.stderr.readline())
            assert found is not None
            description = httpx2.get(f"{found[1]}/v1/openapi.json", headers={"Authorization": f"Bearer {secret}"})
            (folder / "openapi.json").write_text(json.dumps(description.raise_for_status().json()))
            run(folder, "npm", "install", "--no-audit", "--no-fund")
            run(folder, "npm", "run", "generate")
            run(folder, "npm", "run", "build")
            said = run(folder, "node", "build/check.js", found[1], secret, "bén/#1")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(20)
        lines = len((folder / "src" / "schema.ts").read_text().splitlines())
        operations = sum(
            method in ("get", "put", "post", "patch", "delete")
            for path in description.json()["paths"].values()
            for method in path
        )
        node = run(folder, "node", "--version")
    pinned = json.loads((CLIENT / "package.json").read_text())
    versions = {**pinned["dependencies"], **pinned["devDependencies"], "node": node}
    result = {"said": said, "operations": operations, "generated_lines": lines, "versions": versions}
    text = [
        *opening("The TypeScript client against a real server"),
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        "",
        f"{operations} operations of the OpenAPI file became {lines} lines of types; the client compiles in strict "
        f"mode, and its check ran against `memalpha serve`: {said}, all as asserted.",
    ]
    save(arguments.results / "typescript-client", result, "\n".join(text))


if __name__ == "__main__":
    main()
