"""Publish a run's best checkpoint on the model hub, with its card."""

from __future__ import annotations

from pathlib import Path

from httpx import TransportError
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from memalpha.config import training_config
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.hub import hub_reachable
from memalpha.policy.load import adapter_chain
from memalpha.train.trainers.directory import CARD_FILE, VALUE_HEAD, RunDirectory, read_json
from memalpha.train.trainers.model_card import render_card

RESUME_ONLY = ("optimizer", "state.json", VALUE_HEAD, CARD_FILE, ".")
"""Beginnings of the names of files that only resuming needs; the card is made anew."""


def push_run(run: str | Path, repository: str, *, private: bool = False) -> tuple[str, list[str]]:
    """Upload the best checkpoint of a run in one commit, without what only resuming needs.

    The repository is created if it is missing. Token and address of the hub come from its own client (`HF_TOKEN`,
    `hf auth login`, `HF_ENDPOINT`).

    Args:
        run: Run directory.
        repository: OWNER/NAME on the hub.
        private: Make a new repository private.

    Returns:
        Address of the repository, names of the files.

    Raises:
        CheckpointError: `run` is no run directory.
        ConfigError: The run has no checkpoint yet, its adapters' base is a folder here, or the name is invalid.
        PolicyError: The hub cannot be reached, or refuses.
    """
    directory = RunDirectory(Path(run))
    if not directory.load_settings():
        raise CheckpointError(f"{run} holds no config.yaml: name the directory of a training run")
    if "/" not in repository:
        raise ConfigError(f"{repository!r} names no owner: give OWNER/NAME")
    folder = directory.best_checkpoint()
    base, *adapters = adapter_chain(folder)
    if adapters and Path(base).is_dir():
        raise ConfigError(
            f"{folder} holds adapters of {base}, which nobody else has: write a merged model (memalpha merge {run} "
            "FOLDER) and upload that folder (hf upload)"
        )
    if not hub_reachable():
        raise PolicyError("the model hub cannot be reached from here: nothing was uploaded")
    card = _card(directory, folder, repository)
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(RESUME_ONLY))
    operations = [CommitOperationAdd(path.name, path) for path in files]
    operations.append(CommitOperationAdd(CARD_FILE, card.encode("utf-8", "backslashreplace")))
    api = HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.create_commit(repository, operations, commit_message=f"{directory.path.name}, {folder.name}")
    except HFValidationError as error:
        raise ConfigError(f"{repository!r} is no name of a repository: {error}") from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        login = ": log in with `hf auth login`, or set HF_TOKEN to a token that may write" if code in (401, 403) else ""
        raise PolicyError(f"the hub refused {repository} ({code}){login or f': {error}'}") from error
    except (OSError, TransportError) as error:
        raise PolicyError(f"the connection to the hub broke ({error}): the same command uploads again") from error
    return str(address), [operation.path_in_repo for operation in operations]


def _card(directory: RunDirectory, folder: Path, repository: str) -> str:
    """Return the card of a checkpoint under its name on the hub."""
    state = read_json(folder / "state.json")
    has_summary = (directory.path / "summary.json").is_file()
    summary = directory.read_json("summary.json") if has_summary else {}
    config = training_config(directory.path)
    return render_card(config, state, summary if summary.get("best_step") == state["step"] else None, name=repository)
