"""Print the prompt of a Mem-alpha checkout as a file for `agent.prompt_file`.

Run it in the checkout, with the environment of Mem-alpha. It asks their own code for the messages, with marks in place
of memory and chunk, and puts placeholders where the marks come out.

    cd Mem-alpha && python PATH/TO/scripts/mem_alpha_prompt.py > mem-alpha-prompt.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

KINDS = ("semantic", "episodic")


class Messages:
    """Tokenizer that returns the messages as they are."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[dict[str, str]]:
        return messages


def main() -> None:
    """Print `system` and `user` as JSON."""
    sys.path.insert(0, str(Path.cwd()))
    from agent import MemoryAgent  # pyright: ignore[reportMissingImports]
    from functions import get_memory_tool_schemas  # pyright: ignore[reportMissingImports]
    from memory import Memory  # pyright: ignore[reportMissingImports]

    prompts = yaml.safe_load(Path("config/prompts_wrt_datasource.yaml").read_text(encoding="utf-8"))
    memory = Memory(including_core=True)
    memory.core = "{{core}}"
    memory.semantic, memory.episodic = ([{"mark": kind}] for kind in KINDS)
    system, user = MemoryAgent.process_text_with_qwen_pipeline(
        text=prompts["unified_prompt"].format(context="{{chunk}}", max_new_tokens="{{response_limit}}"),
        tokenizer=Messages(),
        functions=[tool["function"] for tool in get_memory_tool_schemas(memory)],
        memory=memory,
        enable_thinking=False,
        return_text=True,
    )
    text = system["content"]
    for kind in KINDS:
        counts = re.compile(rf"1(\D+)1(\D+)\[mark\] {kind}\n")
        if len(counts.findall(text)) != 1:
            raise SystemExit(f"the {kind} memory is not shown as expected: is this another version of Mem-alpha?")
        shown, total, lines = (f"{{{{{kind}{part}}}}}" for part in ("_shown", "_total", ""))
        text = counts.sub(rf"{shown}\1{total}\2{lines}\n", text)
    print(json.dumps({"system": text, "user": user["content"]}, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
