"""Tokens a second of decoding on a CUDA device: steps as graphs, plain steps, and `transformers.generate`.

    python eval/learning/gpu_decoding.py MODEL [--rows 8 32 128] [--tokens 64] [--dtypes float32 bfloat16]

`MODEL` is a transformers directory, such as the one that `memalpha fetch smol` prints. Prompts are lines about people,
eight replies to each; all samplers draw `--tokens` tokens at temperature 1, end tokens or not. Each runs five times;
the best of the last three counts. The tokens of graphs and plain steps are compared, and their log-probs. Writes
`gpu-decoding.json` and `gpu-decoding.md` to --results.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from memalpha import load_policy
from memalpha.policy import decoding_rows
from memalpha.policy.decoding import DecodingQueue
from memalpha.policy.transformers import TransformersPolicy
from memalpha.types import Completion, SampleRequest

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

FAMILIES = decoding_rows.GRAPHED_FAMILIES


def make_prompts(policy: TransformersPolicy, count: int) -> list[list[int]]:
    """Return `count` prompts of some hundred tokens, eight of each."""
    lines = [
        f"{name} moved to {place} in May and likes {food}." for name in NAMES for place in PLACES for food in FOODS
    ]
    texts = ["\n".join(lines[start : start + 12]) for start in range(0, len(lines), 12)]
    system = {"role": "system", "content": "Keep what the user says: one line for each fact. " * 12}
    return [
        policy.render([system, {"role": "user", "content": texts[number // 8 % len(texts)]}]) for number in range(count)
    ]


NAMES = ("Ana", "Bela", "Chidi", "Dora", "Emre", "Fay")
PLACES = ("Lisbon", "Oslo", "Quito", "Riga")
FOODS = ("olives", "rye bread", "figs", "soup")


def memalpha_sampler(
    policy: TransformersPolicy, prompts: Sequence[list[int]], tokens: int, *, graphs: bool
) -> Callable[[], list[Completion]]:
    """Return a function that samples a reply to each prompt."""

    def sample() -> list[Completion]:
        decoding_rows.GRAPHED_FAMILIES = FAMILIES if graphs else ()
        queue = DecodingQueue(
            lambda requests: [prompts[request.key[0]] for request in requests],
            lambda rows: ["" for _ in rows],
            policy._make_rows,
            frozenset(),
            batch_rows=policy.batch_rows,
            batch_tokens=1 << 18,
        )
        queue.submit([SampleRequest((), key=(n,), temperature=1.0, max_new_tokens=tokens) for n in range(len(prompts))])
        replies: dict[int, Completion] = {}
        while len(replies) < len(prompts):
            replies.update(queue.collect())
        return [replies[number] for number in range(len(prompts))]

    return sample


def generate_sampler(policy: TransformersPolicy, prompts: Sequence[list[int]], tokens: int) -> Callable[[], Any]:
    """Return a function that calls `generate` on left-padded prompts."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=policy.model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=policy.model.device)
    options = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens, "pad_token_id": 0}
    model: Any = policy.model

    def sample() -> Any:
        with torch.no_grad():
            return model.generate(input_ids=ids, attention_mask=mask, **options).cpu()

    return sample


def seconds(sample: Callable[[], Any]) -> float:
    """Return the shortest of three runs, after two that are not measured."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        sample()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def measure(policy: Any, rows: int, tokens: int) -> dict[str, Any]:
    """Return the speeds of all samplers with this many rows, and how graphs and plain steps differ."""
    prompts = make_prompts(policy, rows)
    graphs = memalpha_sampler(policy, prompts, tokens, graphs=True)
    plain = memalpha_sampler(policy, prompts, tokens, graphs=False)
    pairs = [
        (one, other) for one, other in zip(graphs(), plain(), strict=True) if one.completion_ids == other.completion_ids
    ]
    return {
        "rows": rows,
        "prompt_tokens": max(map(len, prompts)),
        "graphs": rows * tokens / seconds(graphs),
        "plain": rows * tokens / seconds(plain),
        "generate": rows * tokens / seconds(generate_sampler(policy, prompts, tokens)),
        "equal_replies": len(pairs),
        "largest_logprob_difference": max(
            (abs(a - b) for one, other in pairs for a, b in zip(one.logprobs, other.logprobs, strict=True)), default=0.0
        ),
    }


def main() -> None:
    """Measure and write both files."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    records = []
    for dtype in arguments.dtypes:
        policy: Any = load_policy(arguments.model, dtype=dtype, device="cuda")
        for rows in arguments.rows:
            records.append({"dtype": dtype} | measure(policy, rows, arguments.tokens))
            print(json.dumps(records[-1]), flush=True)
    name = torch.cuda.get_device_name()
    lines = [
        "| weights | rows | prompt tokens | graphs, tokens/s | plain steps | `generate` | "
        "replies equal to plain steps' | largest difference of a log-prob |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        speeds = " | ".join(f"{r[way]:,.0f}" for way in ("graphs", "plain", "generate"))
        equal = f"{r['equal_replies']} | {r['largest_logprob_difference']:.1e}"
        lines.append(f"| {r['dtype']} | {r['rows']} | {r['prompt_tokens']} | {speeds} | {equal} |")
    intro = f"One {name}, torch {torch.__version__}, {arguments.tokens} tokens a reply.\n\n"
    page = "\n".join([*opening("Decoding on a GPU"), "", intro + "\n".join(lines)])
    save(arguments.results / "gpu-decoding", {"device": name, "records": records}, page)


if __name__ == "__main__":
    main()
