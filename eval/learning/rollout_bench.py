"""Compare rollouts in lock-step with continuous batching: `python eval/learning/rollout_bench.py --baseline CHECKOUT`.

Chains of turns as in rollouts: 2 to 12 turns each, turn lengths geometric, prompts new in every turn. In lock-step,
turn i of all chains is one `sample`, which waits for the longest. With a queue, a chain submits its next turn when its
own has ended. Both ways run in one process in turns; CPU-seconds of the process, one thread. `--baseline` names another
checkout of memalpha: its lock-step decodes the same chains in processes of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent))

# model, sampling dtype, chains, mean and most new tokens of a turn, words of a prompt
CASES = {
    "tiny float64": ("tiny", "float64", 32, 16, 64, (30, 70)),
    "tiny float32": ("tiny", "float32", 32, 16, 64, (30, 70)),
    "20M float32": ("20M", "float32", 6, 24, 96, (60, 160)),
}

Chains = list[list[Any]]
"""Requests by chain and turn."""


def draw_chains(count: int, mean: int, most: int, words: tuple[int, int], vocabulary: list[str]) -> Chains:
    """Draw chains of 2 to 12 turns, quantiles of a geometric length per turn, and prompts of random words.

    Args:
        count: number of chains.
        mean: mean length of a turn, in tokens.
        most: greatest length of a turn.
        words: fewest and most words of a prompt.
        vocabulary: words to draw from.
    """
    from memalpha.types import SampleRequest

    rng = random.Random(0)
    chains = []
    for chain in range(count):
        turns = []
        for turn in range(rng.randint(2, 12)):
            length = 1
            while length < most and rng.random() > 1 / mean:
                length += 1
            text = " ".join(rng.choices(vocabulary, k=rng.randint(*words)))
            message = {"role": "user", "content": text}
            turns.append(SampleRequest((message,), key=(chain, turn), temperature=1.0, max_new_tokens=length))
        chains.append(turns)
    return chains


def make_policy(model: str, dtype: str) -> tuple[Any, list[str]]:
    """Return a policy that never ends by itself, and words of its vocabulary."""
    import torch

    torch.set_num_threads(1)
    if model == "tiny":
        try:
            from memalpha.policy.load import load_policy
        except ImportError:  # a baseline from before the module moved
            from memalpha.policy.base import load_policy
        policy: Any = load_policy("tiny")
        words = sorted(word for word in policy.tokenizer.get_vocab() if word.isalpha() and word.isascii())
    else:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        from update_bench import build

        try:
            from memalpha.policy.transformers import TransformersPolicy
        except ImportError:
            from memalpha.policy.transformers_ import TransformersPolicy
        network = build(model)
        words = [f"w{number}" for number in range(1, network.config.vocab_size)]
        vocabulary = {"<end>": 0} | {word: number + 1 for number, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, "<end>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
        fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        policy = TransformersPolicy(network, fast, model)
    policy.eos_ids = frozenset({-1})
    set_dtype = getattr(policy, "set_sampling_dtype", None) or policy.sample_in
    set_dtype(dtype)
    return policy, words


def in_lock_step(policy: Any, chains: Chains) -> dict[tuple[int, int], Any]:
    """Sample turn by turn: each turn of all chains is one call."""
    completions = {}
    for turn in range(max(map(len, chains))):
        indices = [index for index, chain in enumerate(chains) if len(chain) > turn]
        sampled = policy.sample([chains[index][turn] for index in indices])
        completions |= {(index, turn): completion for index, completion in zip(indices, sampled, strict=True)}
    return completions


def in_queue(policy: Any, chains: Chains) -> dict[tuple[int, int], Any]:
    """Sample by a queue: each chain submits its next turn when its own has ended."""
    queue, completions = policy.open_queue(), {}
    running = {ticket: (index, 0) for index, ticket in enumerate(queue.submit([chain[0] for chain in chains]))}
    while ended := queue.collect():
        following = []
        for ticket, completion in ended:
            index, turn = running.pop(ticket)
            completions[index, turn] = completion
            if turn + 1 < len(chains[index]):
                following.append((index, turn + 1))
        tickets = queue.submit([chains[index][turn] for index, turn in following])
        running.update(zip(tickets, following, strict=True))
    return completions


def measure(case: str, repeats: int, ways: list[str]) -> dict[str, Any]:
    """Return CPU-seconds of each way by repeat, and a hash of the sampled ids.

    Args:
        case: one of `CASES`.
        repeats: measured repeats, after one that is not.
        ways: "lock-step", "queue".
    """
    model, dtype, count, mean, most, words = CASES[case]
    policy, vocabulary = make_policy(model, dtype)
    chains = draw_chains(count, mean, most, words, vocabulary)
    run = {"lock-step": in_lock_step, "queue": in_queue}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    ids: dict[str, str] = {}
    tokens = prompt_tokens = 0
    for _ in range(repeats + 1):
        for way in ways:
            start = time.process_time()
            completions = run[way](policy, chains)
            seconds[way].append(time.process_time() - start)
            sampled = [completions[index].completion_ids for index in sorted(completions)]
            tokens = sum(map(len, sampled))
            prompt_tokens = sum(len(completion.prompt_ids) for completion in completions.values())
            ids[way] = hashlib.sha256(repr(sampled).encode()).hexdigest()[:16]
    return {
        "case": case,
        "turns": sum(map(len, chains)),
        "new_tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "seconds": {way: values[1:] for way, values in seconds.items()},
        "ids": ids,
    }


def child(case: str, repeats: int, ways: list[str], checkout: Path) -> dict[str, Any]:
    """Run `measure` in a process of its own.

    Args:
        case: one of `CASES`.
        repeats: measured repeats.
        ways: "lock-step", "queue".
        checkout: folder whose package is measured.
    """
    words = [sys.executable, __file__, "--case", json.dumps([case, repeats, ways])]
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(checkout)}
    done = subprocess.run(words, env={**os.environ, **quiet}, stdout=subprocess.PIPE, check=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def table(results: list[dict[str, Any]]) -> list[str]:
    """Return Markdown lines, a row for each case."""

    def cell(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    lines = [
        "| model | turns, new tokens, prompt tokens | before: lock-step | lock-step | queue | to lock-step | "
        "to before | equal ids |",
        "|" + "---|" * 8,
    ]
    for result in results:
        seconds = result["seconds"]
        middle = {way: statistics.median(values) for way, values in seconds.items()}
        before = "before" in middle
        lines.append(
            f"| {result['case']} | {result['turns']}, {result['new_tokens']:,}, {result['prompt_tokens']:,} | "
            + (cell(seconds["before"]) if before else "")
            + f" | {cell(seconds['lock-step'])} | {cell(seconds['queue'])} | "
            f"{middle['lock-step'] / middle['queue']:.2f} | "
            + (f"{middle['before'] / middle['queue']:.2f}" if before else "")
            + f" | {'yes' if len(set(result['ids'].values())) == 1 else 'no'} |"
        )
    return lines


def main() -> None:
    """Measure, record and print."""
    if "--case" in sys.argv:
        print(json.dumps(measure(*json.loads(sys.argv[-1]))))
        return
    from common import make_parser, opening, save

    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--baseline", type=Path, help="checkout whose lock-step is measured, too")
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent.parent.parent
    results = []
    for case in arguments.cases:
        result = child(case, arguments.repeats, ["lock-step", "queue"], here)
        if arguments.baseline is not None:
            before = child(case, arguments.repeats, ["lock-step"], arguments.baseline)
            result["seconds"]["before"] = before["seconds"]["lock-step"]
            result["ids"]["before"] = before["ids"]["lock-step"]
        results.append(result)
    text = [
        *opening("Rollouts of unequal length: lock-step and queue"),
        "CPU-seconds, median (least to most); chains of 2 to 12 turns, described in the head of the script. `before`",
        "is the lock-step of the baseline checkout.",
        "",
        *table(results),
    ]
    save(arguments.results / "rollout-bench", {"measurements": results}, "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
