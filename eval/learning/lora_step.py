"""Measure one full LoRA training step on a model of random weights: `python eval/learning/lora_step.py --shape 125m`.

8 rollouts read 8 chunks; the prompts are about 1,000 tokens, the completions 128. Everything is what a run does: the
engine and the policy sample, the reader and the reward judge, GRPO annotates, the learner makes one optimizer step,
the checkpoint is written. Only the weights are made up: Qwen3 of the given shape, built on the device.

So that a random model writes memories, the vocabulary (bytes) has tokens that are a full memory_insert each, and others
that break off inside a call. Rollouts then see different memories and earn different rewards, as real ones do.

Memory is the peak of the whole process (VmHWM) on CPU, and of torch's allocations on a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from memalpha.agent.parsing import format_call
from memalpha.config import TrainConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.reader import load_reader
from memalpha.store.embedding import load_embedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.types import Chunk, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import command, make_parser, save

# width, layers, heads, key-value heads, width of a head, width of the MLP, vocabulary; the last two are Qwen3's own
SHAPES = {
    "1m": (128, 4, 4, 2, 32, 384, 2048),
    "125m": (768, 12, 12, 4, 64, 2944, 32768),
    "0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
    "4b": (2560, 36, 32, 8, 128, 9728, 151936),
}
ROLLOUTS, CHUNKS, CHARACTERS, NEW_TOKENS = 8, 8, 900, 128
PACKAGES = ("torch", "transformers", "peft", "memalpha")
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"

T = TypeVar("T")


def build(shape: str, dtype: str, device: str) -> TransformersPolicy:
    """Build a policy of random weights with a tokenizer of bytes and full calls.

    Args:
        shape: One of `SHAPES`.
        dtype: Name of torch's type.
        device: Name of torch's device.
    """
    width, layers, heads, shared, head, inner, vocabulary = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=head,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    words = ["<|end|>", "<|user|>", "<|assistant|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(words[:3])
    facts = [{"category": "semantic", "content": f"Box {n} stands on shelf {n % 7}."} for n in range(vocabulary // 150)]
    tokenizer.add_tokens([format_call("memory_insert", fact) for fact in facts])
    tokenizer.add_tokens([f"<tool_call>{n}" for n in range(vocabulary // 400)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return TransformersPolicy(model, fast, f"random-{shape}")


def long_task() -> Task:
    """Build a task of equally long chunks of the synthetic world; its questions are asked at the end."""
    world = synthetic.tasks(WorldConfig(preset="full"), 0, 0, 1)[0]
    text = "\n".join(chunk.render() for chunk in world.chunks)
    chunks = [Chunk(text=text[CHARACTERS * i : CHARACTERS * (i + 1)]) for i in range(CHUNKS)]
    questions = [question.model_copy(update={"asked_after_chunk": None}) for question in world.questions[:8]]
    return Task(id="long", chunks=tuple(chunks), questions=tuple(questions))


def peak_mib(device: str) -> float:
    """Return the peak memory so far in MiB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Run the step and return its description, time and memory."""
    shape, device, dtype = arguments.shape, arguments.device, arguments.dtype
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = TrainConfig(
        out=out,
        lora={},  # type: ignore[arg-type]  # its defaults
        dtype=dtype,
        device=device,
        threads=arguments.threads,
        gradient_checkpointing=not arguments.keep_activations,
        microbatch_tokens=arguments.microbatch_tokens,
        group_size=ROLLOUTS,
        tasks_per_step=1,
        agent={"prompt": "compact", "embedder": "hash", "max_new_tokens": NEW_TOKENS},  # type: ignore[arg-type]
        reader={"conflicts": "refuse"},  # type: ignore[arg-type]
    )
    phases: list[dict[str, Any]] = []

    def timed(name: str, work: Callable[[], T]) -> T:
        start, cpu = time.perf_counter(), time.process_time()
        result = work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        phases.append({"phase": name, **seconds, "peak_mib": peak_mib(device)})
        print(json.dumps(phases[-1]), file=sys.stderr, flush=True)
        return result

    policy = timed("build", lambda: build(shape, dtype, device))
    parameters = policy.parameters
    assert config.lora is not None
    adapted = add_lora(policy.model, config.lora, policy.name)
    learner = timed("learner", lambda: Engine(adapted, config, LossSettings.from_config(config.loss, 16)))
    rewards = MemoryReward(config.reward, policy.count_tokens)
    engine = memory_engine(policy, config.agent)
    scorer = MemoryScorer(load_reader(config.reader), rewards, load_embedder(config.agent.embedder))
    worker = RolloutWorker(engine, scorer, config)
    groups, _ = timed("sample", lambda: worker.collect_attempts([long_task()], 0))
    samples = timed("annotate", lambda: GRPO(config).annotate(groups, learner))
    stats = timed("update", lambda: learner.update(samples, config.optimizer.learning_rate))
    folder = timed("checkpoint", lambda: RunDirectory(out).save_checkpoint(1, policy, learner, {}))
    trajectories = groups[0].trajectories
    return {
        "shape": shape,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "dtype": dtype,
        "threads": arguments.threads,
        "gradient_checkpointing": config.compute.gradient_checkpointing,
        "microbatch_tokens": config.compute.microbatch_tokens,
        "parameters": parameters,
        "trained": sum(parameter.numel() for parameter in learner.trainable.values()),
        "rows": len(samples),
        "tokens": sum(sample.length for sample in samples),
        "completion_tokens": sum(len(sample.completion_ids) for sample in samples),
        "longest_row": max(sample.length for sample in samples),
        "rewards": [trajectory.reward.total for trajectory in trajectories if trajectory.reward],
        "entries": [len(trajectory.states[-1].list()) for trajectory in trajectories],
        "loss": stats["loss"],
        "grad_norm": stats["grad_norm"],
        "ratio_deviation": stats["ratio_deviation"],
        "checkpoint_mib": sum(file.stat().st_size for file in folder.iterdir()) / 2**20,
        "minutes": sum(phase["seconds"] for phase in phases) / 60,
        "cpu_minutes": sum(phase["cpu_seconds"] for phase in phases) / 60,
        "peak_mib": peak_mib(device),
        "phases": phases,
        "command": command(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Format all recorded steps as Markdown."""
    head = ("model", "device, precision", "rows, tokens", "trained", "minutes (CPU)", "sampling, update: seconds")
    head = (*head, "update: tokens/s", "peak GiB", "checkpoint MiB")
    text = [
        "# One whole LoRA step on a model of random weights",
        "",
        f"{ROLLOUTS} rollouts of {CHUNKS} chunks, {NEW_TOKENS} new tokens each; what it is: the head of",
        "`eval/learning/lora_step.py`. Minutes are wall time (other jobs ran beside it: hence the CPU-minutes);",
        "memory is the peak of the whole process on CPU, of torch's allocations on a GPU.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for result in results:
        seconds = {phase["phase"]: phase["seconds"] for phase in result["phases"]}
        cells = (
            f"{result['shape']} ({result['parameters'] / 1e6:,.0f}M)",
            f"{result['device']}, {result['dtype']}, {result['threads']} thread(s)",
            f"{result['rows']}, {result['tokens']:,}",
            f"{result['trained'] / 1e6:.1f}M",
            f"{result['minutes']:.1f} ({result['cpu_minutes']:.1f})",
            f"{seconds['sample']:.0f}, {seconds['update']:.0f}",
            f"{result['tokens'] / seconds['update']:,.0f}",
            f"{result['peak_mib'] / 1024:.1f}",
            f"{result['checkpoint_mib']:.0f}",
        )
        text.append("| " + " | ".join(cells) + " |")
    text += ["", "```", *(result["command"] for result in results), "```", ""]
    text += [", ".join(f"{name} {number}" for name, number in results[-1]["versions"].items()) + ".", ""]
    return "\n".join(text)


def main() -> None:
    """Run, replace the record of this shape, device and precision, and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="125m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--microbatch-tokens", type=int, default=4096)
    parser.add_argument("--keep-activations", action="store_true", help="no gradient checkpointing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = step(arguments, Path(folder))
    path = arguments.results / "lora-step.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    key = ("shape", "device", "dtype")
    results = [row for row in results if [row[k] for k in key] != [result[k] for k in key]] + [result]
    save(arguments.results / "lora-step", results, table(results))


if __name__ == "__main__":
    main()
