"""CPU seconds of sampling and learning on a language model: memalpha beside `transformers.generate` and TRL.

    taskset -c 1 python eval/learning/sampling_speed.py MODEL [--repeats 3] [--dtype bfloat16] [--vllm FOLDER]

`MODEL` is a transformers directory, such as the one that `memalpha fetch smol` prints. Prompts are those of the demo
world: compact ones in the line form, and with "full" those that a model gets which was not trained for memalpha. All
samplers draw `--tokens` tokens of each reply at temperature 1, end tokens or not; memalpha records their log-probs,
the others do not. TRL's sampler and loss are `GRPOTrainer`'s own. Learning is forward and backward passes over gold
replies with LoRA r16 on all layers. One pass of each kind goes unmeasured. One thread. With `--vllm` vLLM's CPU build
samples too, in the environment that `scripts/check-vllm FOLDER` makes. With `--dtype bfloat16` the weights are
bfloat16, the adapters float32, and passes run under autocast. Writes `sampling-speed.json` and `sampling-speed.md` to
--results.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig as PeftLoraConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad

from memalpha.config import AgentConfig, LoraConfig, TrainConfig, WorldConfig
from memalpha.environments.memory_writing import memory_engine
from memalpha.policy.decoding import DecodingQueue
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.tasks.synthetic import worlds
from memalpha.train.data.demonstrations import Demonstrator, imitation_rows
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.learner.losses import LossSettings
from memalpha.types import SampleRequest

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, opening, save

Prompts = Sequence[tuple[int, ...]]


def gold_rows(
    policy: TransformersPolicy, count: int, form: str = "lines", prompt: str = "compact"
) -> list[TrainingSample]:
    """Return `count` gold rows of the demo world.

    Args:
        policy: Policy whose tokens the rows are.
        count: Number of rows.
        form: Form of calls.
        prompt: Prompt style.
    """
    agent = AgentConfig.model_validate({"prompt": prompt, "form": form, "max_new_tokens": 512})
    writer = Demonstrator(ScriptedPolicy("oracle"), policy, agent.reply_form)
    groups = memory_engine(writer, agent).roll_out(
        worlds.tasks(WorldConfig(preset="demo", pseudo_values=0.6), 0, 0, max(12, count // 2))
    )
    rows, _ = imitation_rows(trajectory for group in groups for trajectory in group.trajectories)
    return rows[:count]


def group_rows(rows: Sequence[TrainingSample], prompts: int, group: int) -> list[TrainingSample]:
    """Return rows that share prompts, as rollouts of groups do; the replies are those of other rows.

    Args:
        rows: Rows whose prompts and replies are used.
        prompts: Number of prompts.
        group: Replies to each prompt.
    """
    replies = [row.completion_ids for row in rows]
    return [
        cross_entropy_sample(rows[prompt].prompt_ids, replies[(prompt + index) % len(replies)])
        for prompt in range(prompts)
        for index in range(group)
    ]


def memalpha_sampler(policy: TransformersPolicy, tokens: int) -> Callable[[Prompts], int]:
    """Return a function that samples a reply to each prompt and returns the number of its tokens."""

    def sample(prompts: Prompts) -> int:
        requests = [
            SampleRequest((), key=(number,), temperature=1.0, max_new_tokens=tokens) for number in range(len(prompts))
        ]
        queue = DecodingQueue(
            lambda requests: [list(prompts[request.key[0]]) for request in requests],
            lambda rows: ["" for _ in rows],
            policy._make_rows,
            frozenset(),
            batch_rows=policy.batch_rows,
            batch_tokens=policy.batch_tokens,
        )
        queue.submit(requests)
        count = 0
        while completions := queue.collect():
            count += sum(len(completion.completion_ids) for _, completion in completions)
        return count

    return sample


def generate_sampler(policy: TransformersPolicy, tokens: int) -> Callable[[Prompts], int]:
    """Return a function that calls `generate` on left-padded prompts."""

    def sample(prompts: Prompts) -> int:
        ids = pad([torch.tensor(prompt) for prompt in prompts], padding_value=0, padding_side="left")
        mask = pad([torch.ones(len(prompt), dtype=torch.long) for prompt in prompts], 0, "left")
        model: Any = policy.model
        options = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens, "pad_token_id": 0}
        with torch.no_grad():
            return (model.generate(input_ids=ids, attention_mask=mask, **options).shape[1] - ids.shape[1]) * len(ids)

    return sample


def make_trl_trainer(policy: TransformersPolicy, tokens: int, peft_config: Any = None) -> Any:
    """Return a `GRPOTrainer` of the policy's model.

    Args:
        policy: Policy whose model it gets, and changes.
        tokens: New tokens of a reply.
        peft_config: Adapters to train.
    """
    settings = GRPOConfig(
        tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=tokens,
        generation_kwargs={"min_new_tokens": tokens},
        bf16=policy.model.dtype == torch.bfloat16,
        gradient_checkpointing=False,
        report_to="none",
        use_cpu=True,
    )
    return GRPOTrainer(
        policy.model,
        lambda **_: [],
        settings,
        train_dataset=Dataset.from_dict({"prompt": [""]}),
        processing_class=policy.tokenizer,
        peft_config=peft_config,
    )


def trl_sampler(policy: TransformersPolicy, tokens: int) -> Callable[[Prompts], int]:
    """Return a function that samples as `GRPOTrainer` does."""
    trainer = make_trl_trainer(policy, tokens)
    trainer.model.eval()
    return lambda prompts: sum(map(len, trainer._generate_single_turn([list(ids) for ids in prompts], None, {}, 1)[0]))


def run_vllm(folder: Path, batches: dict[str, Prompts], options: Any) -> dict[str, Any]:
    """Return the new tokens and CPU seconds of vLLM's runs by name of the prompts.

    Args:
        folder: Folder of `scripts/check-vllm`.
        batches: Prompts by name.
        options: Options of this script.
    """
    libraries = [next(folder.rglob("libtcmalloc_minimal.so.4")), folder / "venv" / "lib" / "libiomp5.so"]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(map(str, libraries)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # all CPU time is that of one process
        "VLLM_NO_USAGE_STATS": "1",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(batches, file)
        file.flush()
        words = [str(folder / "venv" / "bin" / "python"), str(Path(__file__).with_name("vllm_sampling.py"))]
        words += [options.model, file.name, "--tokens", str(options.tokens), "--repeats", str(options.repeats)]
        process = subprocess.run(
            [*words, "--dtype", options.dtype], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(process.stdout.rpartition("RESULT ")[2])


def memalpha_learner(
    policy: TransformersPolicy, tokens: int, *, share_prefixes: bool
) -> Callable[[Sequence[TrainingSample]], object]:
    """Return a function that adds the gradient of rows to new adapters.

    Args:
        policy: Policy whose model gets adapters.
        tokens: New tokens of a reply; not used here.
        share_prefixes: Compute common prefixes once.
    """
    dtype = str(policy.model.dtype).removeprefix("torch.")
    compute = {"microbatch_tokens": 2048, "share_prefixes": share_prefixes, "dtype": dtype}
    config = TrainConfig(out=Path("unused"), lora=LoraConfig(r=16), learning_rate=1e-4, compute=compute)  # type: ignore[arg-type]
    engine = Engine(add_lora(policy.model, LoraConfig(r=16), "model"), config, LossSettings())
    return lambda rows: engine.forward_backward(engine.normalized(rows))


def trl_learner(policy: TransformersPolicy, tokens: int) -> Callable[[Sequence[TrainingSample]], object]:
    """Return the same with TRL's loss on one padded batch."""
    adapters = PeftLoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trl_trainer(policy, tokens, adapters)
    trainer.current_gradient_accumulation_steps = 1  # `train` sets it
    trainer.model.train()

    def learn(rows: Sequence[TrainingSample]) -> None:
        batch = {}
        for name, side in (("prompt", "left"), ("completion", "right")):
            ids = [torch.tensor(getattr(row, f"{name}_ids")) for row in rows]
            batch[f"{name}_ids"] = pad(ids, padding_value=0, padding_side=side)
            batch[f"{name}_mask"] = pad([torch.ones_like(row) for row in ids], padding_value=0, padding_side=side)
        batch["advantages"] = torch.ones(len(rows))
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
        with trainer.compute_loss_context_manager():
            loss = trainer._compute_loss(trainer.model, batch)
        loss.backward()

    return learn


def table(record: Sequence[dict[str, Any]]) -> list[str]:
    """Format the runs of all systems, those of equal work together."""
    lines = [
        "| | prompts x replies | tokens | system | CPU s | tokens per CPU s | CPU s over memalpha's |",
        "|---" * 7 + "|",
    ]
    firsts: dict[tuple[str, str], float] = {}
    for run in sorted(record, key=lambda run: (run["kind"] != "sampling", run["shape"])):
        seconds = run["cpu_seconds"]
        median = statistics.median(seconds)
        first = firsts.setdefault((run["kind"], run["shape"]), median)
        spread = f"{median:.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        cells = [run["kind"], run["shape"], str(run["tokens"]), run["system"], spread]
        lines.append(f"| {' | '.join(cells)} | {run['tokens'] / median:.0f} | {median / first:.2f} |")
    return lines


def main() -> None:
    """Measure all and write the record."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of a reply")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--vllm", type=Path, help="folder of scripts/check-vllm")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = TransformersPolicy.from_pretrained(arguments.model, dtype=arguments.dtype)
    rows = gold_rows(policy, 16)
    prompts = [row.prompt_ids for row in rows]
    samplers = {"memalpha": memalpha_sampler, "generate": generate_sampler, "TRL": trl_sampler}
    learners = {
        "memalpha": partial(memalpha_learner, share_prefixes=False),
        "memalpha, share_prefixes": partial(memalpha_learner, share_prefixes=True),
        "TRL": trl_learner,
    }
    grouped = [prompt for prompt in prompts[:2] for _ in range(8)]
    full = [row.prompt_ids for row in gold_rows(policy, 8, "native", "full")]
    batches: dict[str, Prompts] = {"2 x 8": grouped, "8 x 1": prompts[:8], "8 x 1, full": full}
    cases: list[tuple[str, str, str, Callable[..., Any], Sequence[Any]]] = []
    for shape, inputs in batches.items():
        cases += [("sampling", shape, name, make, inputs) for name, make in samplers.items()]
    cases += [("learning", "2 x 4", name, make, group_rows(rows, 2, 4)) for name, make in learners.items()]
    record: list[dict[str, Any]] = []
    for kind, shape, name, make, inputs in cases:
        # A copy for each: TRL's trainer changes the model that it is given.
        work = make(TransformersPolicy(copy.deepcopy(policy.model), policy.tokenizer), arguments.tokens)
        work(inputs[:1])
        seconds = []
        for _ in range(arguments.repeats):
            start = time.process_time()
            work(inputs)
            seconds.append(time.process_time() - start)
        count = len(inputs) * arguments.tokens if kind == "sampling" else sum(row.length for row in inputs)
        record.append({"kind": kind, "shape": shape, "system": name, "tokens": count, "cpu_seconds": seconds})
        print(record[-1], file=sys.stderr, flush=True)
    if arguments.vllm is not None:
        result = run_vllm(arguments.vllm, batches, arguments)
        name = f"vLLM {result['version']}, CPU"
        record += [{"kind": "sampling", "shape": shape, "system": name, **result[shape]} for shape in batches]
    title = "Sampling and learning beside generate and TRL"
    packages = ("torch", "transformers", "trl", "peft", "memalpha")
    save(arguments.results / "sampling-speed", record, "\n".join([*opening(title, packages), "", *table(record)]))


if __name__ == "__main__":
    main()
