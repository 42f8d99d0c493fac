"""Load a policy or reward model by name, and write a merged policy."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from memalpha.arguments import check_path, check_type
from memalpha.config import EndpointConfig
from memalpha.config.groups import LoadingConfig
from memalpha.config.sampling import BatchConfig
from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.errors import ConfigError, PolicyError, required_packages
from memalpha.policy.base import ADAPTER_CONFIG, NAMED_POLICIES, RULE_POLICIES, SHIPPED_POLICIES, Policy, endpoint_hint
from memalpha.policy.smol.base_model import SMOL, SMOL_BASE, check_adapter, check_base, find_adapter, find_base

if TYPE_CHECKING:
    from memalpha.policy.reward_model import RewardModel


def load_policy(
    name: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    endpoint: EndpointConfig | None = None,
    loading: LoadingConfig | None = None,
    batching: BatchConfig | None = None,
    setting: str | None = None,
) -> Policy:
    """Load a policy by name.

    A run directory stands for its best checkpoint, or its newest if none was validated. A LoRA adapter directory is
    merged into its base, which is loaded by the same rules. Scripted policies need no torch.

    Args:
        name: "tiny", "tiny-text" or "babi" (shipped weights); "smol" (a shipped adapter) or "smol-base", which need
            `memalpha fetch smol` once; "add_all" or "scripted:KIND"; a transformers directory or
            hub id; a run directory; or an endpoint (`http://host:port/v1#model`, `openai:MODEL`). An endpoint is
            contacted to check that it serves the model.
        dtype: torch dtype of the weights.
        device: torch device of the weights; "meta" loads tokenizer and configuration only, to render prompts.
        endpoint: request settings; used for endpoints only.
        loading: 4 bits, device map and attention of a transformers model. Adapters of a base in 4 bits are not merged.
        batching: most tokens and rows that a transformers model decodes together, and which replies it cuts.
        setting: name of the setting that the name comes from, for the error of an endpoint that is not there.

    Returns:
        The policy, with `name` as its name.

    Raises:
        PolicyError: if the policy cannot be loaded here.
    """
    if name == "":
        raise PolicyError(
            "policy '': name a policy: add_all, smol, openai:MODEL, http://HOST/v1#MODEL, a hub id or a directory"
        )
    check_path("policy", name, error=PolicyError)
    check_type("endpoint", endpoint, (EndpointConfig, NoneType), error=PolicyError)
    check_type("loading", loading, (LoadingConfig, NoneType), error=PolicyError)
    check_type("batching", batching, (BatchConfig, NoneType), error=PolicyError)
    text = RULE_POLICIES.get(str(name), str(name))
    if text.startswith("scripted:"):
        from memalpha.policy.scripted import ScriptedPolicy

        return ScriptedPolicy(text.removeprefix("scripted:"))
    if text.startswith(ENDPOINT_PREFIXES):
        from memalpha.policy.endpoint import EndpointPolicy

        policy = EndpointPolicy(text, endpoint)
        try:
            policy.client.check()
        except PolicyError as error:
            raise error if setting is None else PolicyError(f"{setting}: {error}") from error
        return policy
    hint = f" (scripted:... policies need nothing). {endpoint_hint(text)}"
    with required_packages(f"policy {text!r}", "torch", "transformers", error=PolicyError, hint=hint):
        from memalpha.policy.transformers import TransformersPolicy, merge_adapter, with_adapter_files
    base, *adapters = adapter_chain(text)
    try:
        if base == SMOL_BASE:
            check_base(find_base())
        policy = TransformersPolicy.from_pretrained(policy_path(base), dtype=dtype, device=device, loading=loading)
    except PolicyError as error:
        if not adapters or adapters[0] == SMOL:
            raise
        raise PolicyError(f"{adapters[0]} holds a LoRA adapter for {base!r}, its base: {error}") from error
    for adapter in adapters:
        folder = Path(policy_path(adapter))
        check_adapter(folder, base, Path(policy_path(base)))
        if device == "meta":
            policy = with_adapter_files(folder, policy.model, policy.tokenizer)
        else:
            policy = merge_adapter(policy, folder)
    policy.name = text
    if batching is not None:
        policy.batch_tokens, policy.batch_rows = batching.batch_tokens, batching.decode_rows
        policy.stop_repeats = batching.stop_repeats
    return policy


def load_reward_model(name: str | Path, *, dtype: str = "float32", device: str = "cpu") -> RewardModel:
    """Load a reward model by name; it scores with `.score(prompts, completions)`.

    A LoRA adapter is merged into its base, which is a policy or another reward model.

    Args:
        name: a run directory of `algorithm: reward` (its best checkpoint), a checkpoint, a directory written by
            transformers or TRL's RewardTrainer, or a hub id.
        dtype: torch dtype of the weights.
        device: torch device of the weights.

    Returns:
        The reward model, in evaluation mode.

    Raises:
        PolicyError: if the reward model cannot be loaded here.
    """
    with required_packages(f"reward model {str(name)!r}", "torch", "transformers", error=PolicyError):
        from memalpha.policy.model_files import is_reward_model
        from memalpha.policy.reward_model import load_from_adapter, load_from_directory
        from memalpha.policy.transformers import TransformersPolicy

    check_path("reward model", name, error=PolicyError)
    if str(name) in NAMED_POLICIES:
        raise PolicyError(
            f"{str(name)!r} is a policy: train a reward model on it (memalpha train reward policy={name})"
        )
    *bases, folder = adapter_chain(name)
    if not bases:
        return load_from_directory(folder, dtype, device)
    try:
        if is_reward_model(bases[0]) or (len(bases) > 1 and (Path(bases[1]) / "reward_model.json").is_file()):
            base: Any = load_reward_model(bases[-1], dtype=dtype, device=device)
        else:
            base = load_policy(bases[-1], dtype=dtype, device=device)
    except PolicyError as error:
        raise PolicyError(f"{folder} holds a LoRA adapter for {bases[-1]!r}, its base: {error}") from error
    assert not isinstance(base, Policy) or isinstance(base, TransformersPolicy)
    return load_from_adapter(folder, base)


def absolute_policy_name(name: str) -> str:
    """Return a name that loads the same policy from any directory, also later.

    A directory becomes its absolute path, a run directory the path of its checkpoint.
    """
    return name if name in NAMED_POLICIES or not Path(name).is_dir() else str(resolve_checkpoint(Path(name)).resolve())


def policy_path(name: str) -> str:
    """Return the directory of a named policy; a directory or hub id is returned unchanged.

    Raises:
        PolicyError: The weights of a named policy are not here.
    """
    if name == SMOL_BASE:
        return str(find_base())
    if name == SMOL:
        return str(find_adapter())
    if name not in SHIPPED_POLICIES:
        return name
    folder = Path(str(resources.files("memalpha"))) / "weights" / name
    if not folder.is_dir():
        raise PolicyError(f"this installation lacks the weights of {name!r}: make them from scratch first")
    return str(folder)


def resolve_checkpoint(folder: Path) -> Path:
    """Return the checkpoint of a run directory; any other folder is returned unchanged."""
    checkpoints = folder / "checkpoints"
    if (folder / "config.json").is_file() or not (checkpoints.is_dir() or (folder / "config.yaml").is_file()):
        return folder
    best = checkpoints / "best"
    if best.is_dir():
        return best
    if best.is_symlink():
        raise PolicyError(f"{best} names {best.readlink()}, which is not there: name another checkpoint of the run")
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    if not steps:
        raise PolicyError(f"{folder} is a run directory without a checkpoint yet")
    return checkpoints / f"step-{max(steps)}"


def adapter_chain(name: str | Path) -> list[str]:
    """Return the base model of `name`, then its adapters in merge order.

    The last item is `name` itself, or the checkpoint of a run directory. A model without adapters gives a chain of one.

    Raises:
        PolicyError: An adapter's configuration does not name its base.
    """
    text = str(name)
    chain = [text if text in NAMED_POLICIES else str(resolve_checkpoint(Path(text)))]
    while (path := Path(policy_path(chain[0])) / ADAPTER_CONFIG).is_file():
        try:
            base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PolicyError(f"{path} does not name the adapter's base (base_model_name_or_path)") from error
        if not isinstance(base, str) or base in chain:
            raise PolicyError(f"{path}: base_model_name_or_path is {base!r}: it must name another policy")
        chain.insert(0, base)
    return chain


def write_merged(name: str | Path, out: str | Path) -> Path:
    """Write a policy with its adapters merged as a transformers directory `out`.

    `out` is created if missing. Raises `PolicyError` for a policy without weights and `ConfigError` if `out` exists and
    is not empty.
    """
    out = Path(out).resolve()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is there already: name a directory that does not exist or is empty")
    with required_packages("merge", "torch", "transformers", error=PolicyError):
        from memalpha.policy.transformers import TransformersPolicy
    policy = load_policy(name)
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {str(name)!r} has no weights to write")
    partial = out.with_name(f".{out.name}.part")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        policy.save(partial)
        partial.replace(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}): name another directory") from error
    return out
