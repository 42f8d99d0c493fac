"""Stand-in for a vLLM server over a policy of ours: the routes that training uses, and the ways they can go wrong."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from standin import Answer, HttpStandIn
from transformers import AutoModelForCausalLM

from memalpha.policy.decoding import sampling_uniforms
from memalpha.policy.load import load_policy
from memalpha.policy.model_files import hide_progress_bars
from memalpha.policy.transformers import TransformersPolicy, merge_adapter
from memalpha.policy.vllm.worker_extension import WeightsExtension


@dataclass
class VllmServer(HttpStandIn):
    """Server of the policy in `folder`; greedy and seeded sampling as vLLM does, one request after the other.

    Attributes:
        fault: raw (log-probs before the temperature), top-p (truncated sampling), stale-head (a load keeps the output
            embedding), no-echo, no-end (the end of sequence is left out), hang, or none.
        faults: Number of completions that have the fault; None: all.
    """

    folder: Path
    fault: str = ""
    faults: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    adapters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy: Any = load_policy(self.folder)
        self._lock = threading.Lock()
        self._released = threading.Event()
        runner = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=self.policy.model.config),
            reload_weights=self._reload,
            get_model=lambda: None,
        )
        self.worker = WeightsExtension()
        self.worker.model_runner = runner
        super().__init__(self._respond)
        self.url = f"vllm:{self.url}"

    def __exit__(self, *exception: object) -> None:
        self._released.set()
        super().__exit__(*exception)

    def _respond(self, method: str, path: str, body: bytes) -> Answer:
        if (method, path) == ("GET", "/v1/models"):
            names = [{"id": "tiny", "parent": None}, *({"id": name, "parent": "tiny"} for name in self.adapters)]
            return 200, {}, json.dumps({"data": names}).encode()
        with self._lock:
            status, answer = self.answer(path, json.loads(body or b"null"))
        if answer == "hang":
            self._released.wait(10)
        return status, {}, json.dumps(answer).encode()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/v1/load_lora_adapter":
            base = TransformersPolicy(copy.deepcopy(self.policy.model), self.policy.tokenizer)
            self.adapters[body["lora_name"]] = merge_adapter(base, body["lora_path"])
        elif path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        elif path == "/collective_rpc":
            return 200, {"results": [getattr(self.worker, body["method"])(*body["args"])]}
        elif path != "/reset_prefix_cache":
            return 404, {"detail": "Not Found"}
        return 200, "ok"

    def _reload(self, weights_path: str) -> None:
        self.loads.append(weights_path)
        head = self.policy.model.lm_head.weight.detach().clone()
        with hide_progress_bars():
            self.policy.model = AutoModelForCausalLM.from_pretrained(weights_path)
        if self.fault == "stale-head":
            self.policy.model.lm_head.weight = torch.nn.Parameter(head)

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] != "tiny" and body["model"] not in self.adapters:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        self.requests.append(body)
        fault = self.fault if self.faults is None or len(self.requests) <= self.faults else ""
        if fault == "hang":
            return 200, "hang"
        policy = self.adapters.get(body["model"], self.policy)
        ids, logprobs = self._sample(policy, body, fault)
        has_end = ids[-1] in body["stop_token_ids"]
        if fault == "no-end" and has_end:
            ids, logprobs = ids[:-1], logprobs[:-1]
        choice = {
            "token_ids": ids,
            "prompt_token_ids": [] if fault == "no-echo" else body["prompt"],
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": "stop" if has_end else "length",
        }
        return 200, {"model": body["model"], "choices": [choice]}

    @torch.inference_mode()
    def _sample(self, policy: Any, body: dict[str, Any], fault: str) -> tuple[list[int], list[float]]:
        """Sample one completion, each token from a pass over all before it."""
        ids: list[int] = []
        logprobs: list[float] = []
        noise = sampling_uniforms((body.get("seed", 0),), body["max_tokens"])
        heat = body["temperature"] or 1.0
        while len(ids) < body["max_tokens"] and not (ids and ids[-1] in body["stop_token_ids"]):
            logits = policy.model(torch.tensor([body["prompt"] + ids])).logits[0, -1].double()
            row = torch.log_softmax(logits / heat, -1)
            if fault == "top-p":
                probability, order = row.exp().sort(descending=True)
                row[order[1:][probability.cumsum(0)[:-1] > 0.6]] = -torch.inf
                row = row.log_softmax(-1)
            token = int(row.argmax())
            if body["temperature"]:
                cdf = row.exp().cumsum(0)
                token = int(torch.searchsorted(cdf, noise[len(ids)] * cdf[-1], right=True))
            ids.append(token)
            logprobs.append(float((torch.log_softmax(logits, -1) if fault == "raw" else row)[token]))
        return ids, logprobs
