"""Check every chat template that TRL ships: tools shown, calls read back, thinking on and off.

    python eval/reach/chat_templates.py

Each template gets the tokenizer of a shipped policy: what is measured is the template and how its replies are read, not
a model. A family counts as read back if three calls, with quotes, braces, line breaks and numbers in them, come back
equal through the template's own form and the tokenizer, with thinking off and on, and if calls within thoughts are not
taken for calls.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import trl
from common import make_parser, opening, save
from transformers import AutoTokenizer

from memalpha.agent.parsing import parse_calls
from memalpha.agent.tools import tool_schemas
from memalpha.errors import PolicyError
from memalpha.policy.chat.template import ChatTemplate
from memalpha.policy.chat.text import format_call
from memalpha.store.schema import load_schema

TOOLS = tool_schemas(load_schema("mem-alpha"))
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("memory_insert", {"category": "semantic", "content": 'Ana\'s "cat" is 5, {brace}\nline two', "importance": 0.5}),
    ("memory_delete", {"id": "007"}),
    ("memory_skip", {}),
]
TEXT = "".join(format_call(name, arguments) for name, arguments in CALLS)
MESSAGES = [{"role": "system", "content": "Keep the memory."}, {"role": "user", "content": "Ana moved."}]


def reads_back(chat: ChatTemplate, thinking: bool) -> bool:
    """Return True if the calls of a reply come back equal."""
    prompt = chat.render(MESSAGES, TOOLS, thinking=thinking)
    ids = chat.tokenizer(chat.write_reply(TEXT), add_special_tokens=False)["input_ids"]
    reply = chat.tokenizer.decode(ids) + (chat.end_of_turn if chat.reply_parser else "")
    if prompt.rstrip().endswith("<think>"):
        reply = f"perhaps {TEXT}</think>\n\n{reply}"
    read = parse_calls(chat.read_reply(reply, prompt[-40:], TOOLS))
    return [(call.name, call.arguments) for call in read] == CALLS


def check(path: Path) -> dict[str, Any]:
    """Return what is found about one template."""
    with resources.as_file(resources.files("memalpha") / "weights" / "tiny") as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template, tokenizer.bos_token = path.read_text(encoding="utf-8"), "<bos>"
    chat = ChatTemplate(tokenizer, path.stem)
    try:
        prompt = chat.render(MESSAGES, TOOLS)
        return {
            "template": path.stem,
            "family": chat.family,
            "shows_tools_itself": chat.shows_tools,
            "tools_shown": all(tool["function"]["name"] in prompt for tool in TOOLS),
            "calls_read_back": reads_back(chat, thinking=False) and reads_back(chat, thinking=True),
            "thinking": chat.thinking,
            "format": chat.call_format,
        }
    except PolicyError as error:
        return {"template": path.stem, "refused": str(error)}


def main() -> None:
    """Check all templates, and write record and page."""
    arguments = make_parser(__doc__).parse_args()
    folder = Path(trl.__file__).parent / "chat_templates"
    rows = [check(path) for path in sorted(folder.glob("*.jinja")) if not path.stem.endswith("_training")]
    read = sum(row.get("calls_read_back", False) for row in rows)
    silent = sum(not row.get("tools_shown", True) for row in rows)
    lines = opening("Chat templates: are tools seen and calls read back?", ("trl", "transformers", "memalpha"))
    lines += [
        "",
        f"Of {len(rows)} templates, calls are read back from {read}; {silent} leave the prompt without tools, "
        f"{sum('refused' in row for row in rows)} are refused. At 58cb1af, which read Hermes calls only and asked no "
        "template, the same figures were 4, 11 and 2 (tracebacks).",
        "",
        "| template | family | shows tools itself | format of calls | thinking | read back |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['template']} | refused: {row['refused']} | | | | |")
            continue
        yes = {True: "yes", False: "no"}
        cells = (row["template"], row["family"], yes[row["shows_tools_itself"]], row["format"], row["thinking"])
        lines.append(f"| {' | '.join(cells)} | {yes[row['calls_read_back']]} |")
    save(arguments.results / "chat-templates", rows, "\n".join(lines))


if __name__ == "__main__":
    main()
