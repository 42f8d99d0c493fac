"""Plan a training run before it starts: tokens, memory and seconds of a step, in closed form.

The model is built on torch's meta device from its config.json alone, and its weights are counted. The rest is
arithmetic: for the backward pass a layer keeps the inputs and outputs of its matrices, norms and activation function.
Replies are taken to be as long as the settings allow, rows to share nothing, and attention to be plain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import Qwen3ForCausalLM

from memalpha.agent.agent import build_request
from memalpha.agent.prompts import reader_messages
from memalpha.config import LoraConfig, RewardModelConfig, SFTConfig, TextConfig, TrainConfig
from memalpha.config.groups import LoadingConfig
from memalpha.config.training import AnyTraining, PairsConfig
from memalpha.environments.engine import is_single_turn
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.base import with_prompt_style
from memalpha.policy.flat_qwen3 import MAX_PARAMETERS
from memalpha.policy.kv_cache import cache_argument
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.report import TEMPLATES
from memalpha.store.schema import load_schema
from memalpha.train.algorithms import build_algorithm
from memalpha.train.data.demonstrations import load_rows
from memalpha.train.data.preferences import read_pairs, read_reward_examples
from memalpha.train.learner.lora import add_lora, add_tokens
from memalpha.train.learner.token_logprobs import BLOCK_ROWS
from memalpha.train.rollouts.epochs import schedule_steps
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.text_tasks import TextTaskSource, build_environment, text_engine
from memalpha.train.trainers.preferences import load_lines
from memalpha.train.trainers.trainer import resolve_init_from
from memalpha.types import Observation

ACCURACY = "within 20 % on the sizes measured: 20 to 135 million weights on a CPU"
CARDS = {  # GB, TFLOPS of dense products in bfloat16 and in float32, GB/s; NVIDIA's data sheets and white papers
    "h200": (141, 989, 67, 4800),
    "h100": (80, 989, 67, 3350),
    "a100": (80, 312, 19.5, 2039),
    "a100-40gb": (40, 312, 19.5, 1555),
    "l40s": (48, 362, 91.6, 864),
    "a6000": (48, 155, 38.7, 768),
    "l4": (24, 121, 30.3, 300),
    "a10": (24, 125, 31.2, 600),
    "4090": (24, 165, 82.6, 1008),
    "3090": (24, 71, 35.6, 936),
}
MATRIX_SHARE, BANDWIDTH_SHARE = 0.4, 0.6  # of the published peaks, assumed for training and decoding
LAYER_SECONDS = 5e-4  # assumed least time of a layer in a decoding step: its kernels are launched one by one
GPU_PROCESS_BYTES = 700_000_000  # assumed beside tensors: context, libraries, workspaces
FULL = 0.92  # share of a device's memory that a plan may fill
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4 bits, a scale of 8 bits for 64 weights, one of 32 bits for 256 scales
ENTRY_TOKENS, MEASURED_TASKS = 24, 4  # assumed for a memory entry; tasks that stand for all of a step


class Row(NamedTuple):
    """Tokens of a prompt and of its reply."""

    prompt: int
    reply: int


class Work(NamedTuple):
    """Rows and a reader's answers of one step, of which each stands for `times` alike."""

    rows: Sequence[Row]
    times: float
    steps: int
    updates: int = 1
    epochs: int = 1  # over the rows of a step
    trained: float = 1.0  # share of the rows
    scorings: int = 0  # forward passes over all rows
    has_reference: bool = False
    is_sampled: bool = False
    answers: Sequence[Row] = ()


class ModelShape:
    """Count a policy's weights from its config.json, without reading them.

    Args:
        name: Shipped name, directory, run directory or hub id.
        dtype: torch dtype of the weights.
        loading: 4 bits.
        lora: Adapters to train, in float32; None trains all weights.

    Raises:
        PolicyError: config.json is not here, or of no causal language model.
    """

    def __init__(self, name: str, dtype: str, loading: LoadingConfig, lora: LoraConfig | None = None) -> None:
        policy = load_policy(name, dtype=dtype, device="meta")
        if not isinstance(policy, TransformersPolicy):
            raise PolicyError(f"policy {name!r} has no weights to train: name a directory or a hub id")
        self.policy, model = policy, cast(Any, policy.model)
        cache_argument(model)  # refuses what cannot be sampled
        self.dtype, self.item, self.lora = dtype, getattr(torch, dtype).itemsize, lora
        self.parameters = self.trained = self.policy.parameters
        text = model.config.get_text_config()
        self.layers, self.hidden, self.vocabulary = text.num_hidden_layers, text.hidden_size, text.vocab_size
        self.inner = _number(text, "intermediate_size", "moe_intermediate_size")
        heads = _number(text, "num_attention_heads")
        width = _number(text, "head_dim") or self.hidden // max(1, heads)
        self.queries, self.keys = heads * width, (_number(text, "num_key_value_heads") or heads) * width
        self.normed = (self.queries + self.keys) * any("k_norm" in path for path, _ in model.named_modules())
        head = model.get_output_embeddings()
        linear = [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part is not head]
        experts = _number(text, "num_local_experts", "n_routed_experts", "num_experts")
        chosen = min(_number(text, "num_experts_per_tok", "top_k_experts", "moe_topk") or experts, experts)
        stacks = [weight for weight in model.parameters() if weight.dim() == 3 and len(weight) == experts]
        shapes = [part.weight.shape for part in linear] + chosen * [weight.shape[1:] for weight in stacks]
        dense = sum(part.weight.numel() for part in linear)
        self.matrices, self.active = dense + sum(stack.numel() for stack in stacks), sum(map(torch.Size.numel, shapes))
        self.widths = sum(map(sum, shapes)) + (lora.r * len(linear) if lora is not None else 0)
        packed = dense if loading.load_in_4bit else 0
        self.weights = {dtype: self.item * (self.parameters - packed), "nf4": round(NF4_BYTES * packed)}
        if lora is not None:
            with torch.device("meta"):
                adapted = add_lora(model, lora, name, token_ids=add_tokens(self.policy, lora.trainable_tokens))
            self.trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
            self.weights["float32"] = self.weights.get("float32", 0) + 4 * self.trained
        self.bytes = sum(self.weights.values())
        self.mapped_bytes = 4 * self.parameters if packed or self.item < 4 else 0  # a file in float32
        self.is_fused = type(model) is Qwen3ForCausalLM and lora is None and self.parameters <= MAX_PARAMETERS

    def kept_elements(self, bfloat16: bool) -> float:
        """Return the numbers that all layers keep of a token for the backward pass.

        Inputs and outputs of matrices, the activation function and its product, and norms, of which a frozen one keeps
        no product. With bfloat16 norms and rotations keep float32.
        """
        elements = max(0, self.inner - self.hidden) + 2 * self.normed
        elements -= 0 if self.lora is None else 2 * self.hidden + self.normed
        elements += 6 * self.hidden + 2 * self.queries if bfloat16 else 0
        used = 1.0 if self.lora is None or self.lora.layers is None else self.lora.layers / self.layers
        return used * (self.layers * elements + self.widths)


def _number(settings: Any, *names: str) -> int:
    """Return the first of these settings that is a positive number; 0 without any."""
    numbers = (getattr(settings, name, None) for name in names)
    return next((number for number in numbers if isinstance(number, int) and number > 0), 0)


def plan_work(config: AnyTraining, policy: TransformersPolicy) -> Work:
    """Return the work of one step; prompts are measured with the policy's tokenizer."""
    optimizer: Any = config.optimizer
    if isinstance(config, PairsConfig):
        count = optimizer.batch_pairs
        if isinstance(config, RewardModelConfig):
            names = list(config.objectives)
            examples, _ = load_lines(config, lambda path: read_reward_examples(path, policy, names), "line")
            rows = [Row(len(prompt), len(reply)) for example in examples for prompt, reply in example.rows]
        else:
            pairs, _ = load_lines(config, lambda path: read_pairs(path, policy), "pair")
            rows = [Row(len(row.prompt_ids), len(row.completion_ids)) for pair in pairs for row in pair.rows("0")]
        steps, times = schedule_steps(config, len(rows) // 2, count), 2 * count / len(rows)
        scorings = 0 if isinstance(config, RewardModelConfig) else 2 - config.dpo.reference_free  # type: ignore[attr-defined]
        return Work(rows, times, steps, scorings=scorings, has_reference=scorings > 1)
    if isinstance(config, SFTConfig):
        is_file, count = config.source.endswith(".jsonl"), optimizer.batch_rows
        samples = [sample for unit in load_rows(Path(config.source), policy) for sample in unit] if is_file else []
        rows = [Row(len(sample.prompt_ids), len(sample.completion_ids)) for sample in samples]
        rows = rows or _memory_rows(config, policy)[0]
        return Work(rows, count / len(rows), schedule_steps(config, len(rows), count))
    algorithm, group = build_algorithm(config), config.sampling.group_size
    if isinstance(config, TextConfig):
        rows, answers, times = _text_rows(config, policy), [], float(group)
    else:
        rows, answers = _memory_rows(config, policy)
        times = group * max(1.0, config.sampling.tasks_per_step / MEASURED_TASKS)
    if config.algorithm == "erl":  # every attempt is taken to be reflected on and tried again
        rows = [*rows, *(Row(row.prompt + algorithm.advice_tokens, row.reply) for row in rows)]
    steps, updates, epochs = optimizer.schedule_steps, optimizer.minibatches, optimizer.num_iterations
    trained = 2 / group if config.algorithm == "dpo" else 1.0
    scorings = {"ppo": 1, "dpo": epochs}.get(config.algorithm, 0) + (config.loss.old_logprobs == "recomputed")
    scorings, has_reference = scorings + algorithm.needs_reference, algorithm.needs_reference
    return Work(rows, times, steps, updates, epochs, trained, scorings, has_reference, True, answers)


def _text_rows(config: TextConfig, policy: TransformersPolicy) -> list[Row]:
    """Return the rows of one rollout of each task; episodes are taken to last all their turns."""
    environment = build_environment(config)
    engine, reply = text_engine(config, policy, environment), config.reply_tokens
    prompts = [len(policy.render_request(engine.first_request(task))) for task in TextTaskSource(config).batch(0)]
    room, turns = (policy.positions or 1 << 30) - reply, 1 if is_single_turn(environment) else config.max_turns
    return [Row(min(prompt + turn * reply, room), reply) for prompt in prompts for turn in range(turns)]


def _memory_rows(config: TrainConfig | SFTConfig, policy: TransformersPolicy) -> tuple[list[Row], list[Row]]:
    """Return the rows of one rollout of some tasks, with a full view of the memory, and of the reader's answers."""
    agent, reader = with_prompt_style(config.agent, policy), with_prompt_style(config.reader, policy)
    schema, source, reply = load_schema(agent.memory_schema), TaskSource(config), agent.max_new_tokens
    source.check(policy, agent, schema)
    rows, answers = [], []
    for task in source.batch(0)[:MEASURED_TASKS]:
        for index, chunk in enumerate(task.chunks):
            bare = len(policy.render_request(build_request(Observation(chunk, "", ()), agent, schema)))
            rows.append(Row(bare + min(agent.view_tokens, index * reply), agent.thinking_tokens + reply))
        if isinstance(config, TrainConfig) and reader.is_model:
            shown = reader.k * (1 + reader.searches * (reader.kind == "agentic")) * ENTRY_TOKENS
            shown = reader.context_tokens if reader.kind == "full-memory" else shown
            for question in task.questions[: config.sampling.questions_per_task]:
                prompt = len(policy.render(reader_messages(question.question, (), reader))) + shown
                answers.append(Row(prompt, reader.thinking_tokens + reader.max_new_tokens))
    return rows, answers


class RunPlan(NamedTuple):
    """Plan the memory and time of one process of a run."""

    config: Any
    model: ModelShape
    work: Work
    processes: int
    reader: ModelShape | None

    def phases(self) -> dict[str, dict[str, int]]:
        """Return bytes by phase and part; with FSDP a sampler in the process holds whole weights."""
        config, model, work = self.config, self.model, self.work
        is_cpu, shard = config.compute.device == "cpu", self.processes if config.compute.sharding == "fsdp" else 1
        base = {"process": 0 if is_cpu else GPU_PROCESS_BYTES, "weights": model.bytes // shard}
        base["optimizer"] = 8 * model.trained // shard if is_cpu or not config.compute.offload_optimizer else 0
        base["reference"] = model.bytes // shard if work.has_reference and config.lora is None else 0
        base["reader"] = 0 if self.reader is None else self.reader.bytes
        phases = {}
        if work.is_sampled and config.sampling.sampler is None:
            dtype = config.sampling.dtype or model.dtype
            item = getattr(torch, dtype).itemsize
            if shard > 1 or dtype != model.dtype or (is_cpu and model.is_fused):
                base["sampler's copy"] = model.parameters * item
            phases["sampling"] = base | self._decoding_parts(model, work.rows, item)
        if self.reader is not None:
            phases["reading"] = base | self._decoding_parts(self.reader, work.answers, self.reader.item)
        learning = self._learning_parts(shard)
        if shard > 1:  # a layer and the next one with gradients, and what is in no layer
            learning["gathered weights"] = 28 * model.matrices // model.layers + 8 * (model.parameters - model.matrices)
        phases["learning"] = base | learning
        if is_cpu:
            phases["loading"] = {"weights": model.bytes, "mapped file": model.mapped_bytes}
        return {name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()}

    def _batch(self, rows: Sequence[Row]) -> int:
        """Return how many rows are decoded together."""
        most, sampling = len(rows) * self.work.times / self.processes, self.config.sampling
        return max(1, round(min(most, sampling.decode_rows, sampling.batch_tokens // max(map(sum, rows)))))

    def _decoding_parts(self, model: ModelShape, rows: Sequence[Row], item: int) -> dict[str, int]:
        """Return keys and values of rows that are decoded together, and what a prefill or a step needs beside them."""
        batch = self._batch(rows)
        prefill = batch * max(row.prompt for row in rows) * (4 * model.hidden + 3 * model.inner) * item
        drawing = batch * model.vocabulary * (24 + item % 4)  # logits, softmax and the cumulative sum in float64
        cache = batch * max(map(sum, rows)) * model.layers * 2 * model.keys * item
        return {"keys and values": cache, "passes": max(prefill, drawing)}

    def _learning_parts(self, shard: int) -> dict[str, int]:
        """Return gradients, and activations of the largest micro-batch: the first, before gradients, or the second."""
        compute, lora, model, work = self.config.compute, self.config.lora, self.model, self.work
        bfloat16, longest = compute.dtype == "bfloat16", max(map(sum, work.rows))
        item, head, vocabulary = 2 if bfloat16 else 4, model.hidden * model.vocabulary, model.vocabulary
        update = max(1, round(len(work.rows) * work.times * work.trained / work.updates / self.processes))
        most = max(1, compute.microbatch_tokens // longest)
        gradients, head_gradient = 4 * model.trained, 4 * head if lora is None else 0
        peak = gradients + head_gradient  # embeddings are last: their gradients as input and output meet
        for rows, earlier in ((min(update, most), 0), (min(update // 2, most), gradients)):
            tokens, targets = rows * (longest - 1), rows * max(row.reply for row in work.rows)
            kept = tokens * model.kept_elements(bfloat16) * item
            layer = 1.5 * kept / model.layers
            if compute.gradient_checkpointing:  # the input of each layer, and one layer computed again
                kept = tokens * model.layers * model.hidden * (4 if lora is None else item)
            kept_logits, block = min(targets, compute.head_tokens), min(BLOCK_ROWS, compute.head_tokens)
            logits = (kept_logits * item + 3 * block * 4) * vocabulary
            peak = max(peak, earlier + kept + head_gradient + max(logits + 2 * head * bfloat16, layer))
        parts = {"gradients": gradients // shard, "activations": round(peak) - gradients}
        copied = 4 if compute.device == "cpu" else 0 if lora else 2  # bytes; on a CPU measured, of unknown cause
        return parts | {"copies of weights": copied * model.matrices * bfloat16}

    def seconds(self, card: str) -> dict[str, float]:
        """Return the seconds of a step by phase; waiting for endpoints and evaluations are not in it."""
        config, model, work = self.config, self.model, self.work
        _, bfloat16, float32, gigabytes = CARDS[card]
        flops = MATRIX_SHARE * 1e12 * (bfloat16 if config.compute.dtype == "bfloat16" else float32) * self.processes

        def forward(shape: ModelShape, rows: Sequence[Row]) -> float:
            attention = sum(sum(row) ** 2 for row in rows) * shape.queries * shape.layers
            head = sum(row.reply for row in rows) * shape.hidden * shape.vocabulary
            return 2 * work.times * (shape.active * sum(map(sum, rows)) + attention + head) / flops

        def decode(shape: ModelShape, rows: Sequence[Row]) -> float:
            batch, context = self._batch(rows), sum(map(sum, rows)) / len(rows)
            numbers = shape.matrices + shape.hidden * shape.vocabulary + batch * context * shape.layers * 2 * shape.keys
            step = max(LAYER_SECONDS * shape.layers, numbers * shape.item / (BANDWIDTH_SHARE * 1e9 * gigabytes))
            steps = work.times * sum(row.reply for row in rows) / batch / self.processes
            return forward(shape, [Row(row.prompt, 0) for row in rows]) + steps * step

        passes = (3.0 if config.lora is None else 2.0) + config.compute.gradient_checkpointing
        passes = passes * work.trained * work.epochs + work.scorings
        seconds = {"sampling": decode(model, work.rows)} if work.is_sampled else {}
        if self.reader is not None:
            seconds["reading"] = decode(self.reader, work.answers)
        return seconds | {"learning": passes * forward(model, work.rows)}


def plan_run(config: AnyTraining, *, gpu: str | None = None, processes: int | None = None) -> dict[str, Any]:
    """Return tokens, memory and time of a training run; nothing is trained or written.

    Args:
        config: Settings of the run.
        gpu: Card to plan for (`CARDS`); default: the run's device, without times.
        processes: Processes that share the work; default: those of the launcher, else 1.

    Returns:
        `policy`, `processes`, `model`, `step`, `memory`, `time`. Sizes are bytes, times seconds.

    Raises:
        ConfigError: The settings do not fit, or the card is not known.
        DataError: The data are missing or do not fit.
        PolicyError: The policy's config.json or tokenizer is not here, or it is no causal language model.
    """
    processes, config = processes or int(os.environ.get("WORLD_SIZE", "1")), resolve_init_from(config)
    card = None if gpu is None else gpu.lower().replace("rtx", "").strip(" -")
    if card is not None and card not in CARDS:
        raise ConfigError(f"--gpu {gpu}: no figures for this one; known are {', '.join(CARDS)}")
    if card is not None and config.compute.device == "cpu":
        config = config.replace(device="cuda")
    dtype = config.compute.dtype if config.lora is not None else "float32"
    model, reader = ModelShape(config.policy, dtype, config.compute, config.lora), None
    work = plan_work(config, model.policy)
    name = (config.reader.policy or config.policy) if isinstance(config, TrainConfig) else ""
    if work.answers and not name.startswith(("openai:", "http://", "https://", "scripted:")):
        reader = ModelShape(name, config.compute.dtype, config.compute)
    plan = RunPlan(config, model, work, processes, reader)
    phases = [{"name": name, "bytes": sum(parts.values()), "parts": parts} for name, parts in plan.phases().items()]
    peak, seconds = max(phases, key=lambda phase: phase["bytes"]), None if card is None else plan.seconds(card)
    total = None if seconds is None else sum(seconds.values())
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if config.compute.device == "cpu" else None
    memory = ram if card is None else int(CARDS[card][0] * 1e9)
    prompt_tokens, reply_tokens = (round(work.times * sum(tokens)) for tokens in zip(*work.rows, strict=True))
    count, weights = round(work.times * len(work.rows)), {name: size for name, size in model.weights.items() if size}
    step = {"prompts": count, "prompt_tokens": prompt_tokens, "completion_tokens": reply_tokens}
    return {
        "policy": config.policy,
        "processes": processes,
        "model": {"parameters": model.parameters, "trained": model.trained, "bytes": weights},
        "step": step | {"answers": round(work.times * len(work.answers)), "rows": round(count * work.trained)},
        "memory": {
            "phases": phases,
            "peak": {"phase": peak["name"], "bytes": peak["bytes"]},
            "device_bytes": memory,
            "fits": None if memory is None else peak["bytes"] <= FULL * memory,
            "accuracy": ACCURACY,
        },
        "time": {"device": card, "phases": seconds, "step_seconds": total, "steps": config.max_steps or work.steps},
    }


def format_plan(plan: Mapping[str, Any]) -> str:
    """Return a plan (`plan_run`) as lines of text."""
    return TEMPLATES.get_template("plan.txt.jinja").render(plan)
