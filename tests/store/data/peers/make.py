"""Made the files beside it, which the tests of imports read: what real packages keep of some sentences of our own.

    pip install mem0ai==2.2.1 faiss-cpu==1.15.1 qdrant-client==1.20.0 langgraph-checkpoint-sqlite==3.1.2
    python tests/store/data/peers/make.py

No network, no language model (`infer=False`), an embedder of eight numbers. All packages are Apache-2.0 or MIT; the
files hold nothing of theirs but the names of tables, fields and one class.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

os.environ["MEM0_TELEMETRY"] = "False"
os.environ["OPENAI_API_KEY"] = "none"
os.environ["MEM0_DIR"] = tempfile.mkdtemp()

from langgraph.store.sqlite import SqliteStore
from mem0 import Memory

HERE = Path(__file__).parent


class Embedder:
    config = None

    def embed(self, text, memory_action=None):
        numbers = [byte - 127.5 for byte in hashlib.blake2b(text.encode(), digest_size=8).digest()]
        return [number / sum(n * n for n in numbers) ** 0.5 for number in numbers]

    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]


def mem0(kind: str) -> None:
    out = HERE / f"mem0-{kind}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    vectors = {"collection_name": "mem0", "path": str(out), "embedding_model_dims": 8}
    if kind == "qdrant":
        vectors["on_disk"] = True
    settings = {"vector_store": {"provider": kind, "config": vectors}, "history_db_path": str(out / "history.db")}
    memory = Memory.from_config(settings)
    memory.embedding_model = Embedder()

    def add(text, **scope):
        return memory.add(text, infer=False, **scope)["results"][0]["id"]

    home = add("Ana lives in Lisbon.", user_id="ana", metadata={"topic": "home"})
    messages = [{"role": "user", "content": "I ran a half marathon.", "name": "ana"}]
    add([*messages, {"role": "assistant", "content": "Well done!"}], user_id="ana", agent_id="coach", run_id="run-1")
    add("Tom likes tea.", user_id="tom", expiration_date="2030-01-31")
    cat = add("Tom has a cat.", user_id="tom")
    add("Tom likes tea.", user_id="tom")
    add("Be brief.", agent_id="coach")
    memory.update(home, "Ana lives in Porto.")
    memory.delete(cat)
    memory.close()
    for file in (*out.glob("*.faiss"), out / ".lock"):
        file.unlink(missing_ok=True)


def langgraph() -> None:
    path = HERE / "langgraph.db"
    path.unlink(missing_ok=True)
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.put(("users", "ana"), "home", {"text": "Ana lives in Lisbon."})
        store.put(("users", "ana"), "home", {"text": "Ana lives in Porto.", "topic": "home"})
        store.put(("users", "tom"), "a key", {"kind": "Memory", "content": {"content": "Tom likes tea."}}, ttl=60)
        store.put(("users", "tom"), "tea-too", {"text": "Tom likes tea."})
        store.put(("users", "tom"), "profile", {"name": "Tom", "age": 40})
        store.put(("users", "tom"), "gone", {"text": "Tom has a cat."})
        store.delete(("users", "tom"), "gone")


if __name__ == "__main__":
    mem0("faiss")
    mem0("qdrant")
    langgraph()
