"""CPU seconds of sampling with vLLM's CPU build, for `sampling_speed.py --vllm FOLDER`, which starts this script.

    python eval/learning/vllm_sampling.py MODEL PROMPTS --tokens 16 --repeats 3 --dtype float32

Runs in the environment that `scripts/check-vllm FOLDER` makes; it needs nothing of memalpha. `PROMPTS` is a JSON file
of lists of token ids by name. The engine runs in this process with one thread and without compilation, and forgets its
cached prompts before each run. Prints a JSON object: new tokens and CPU seconds of each run by name, and the version.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


def main() -> None:
    """Measure all prompts and print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    arguments = parser.parse_args()
    from vllm import LLM, SamplingParams, __version__  # type: ignore[import-not-found]

    batches = json.loads(arguments.prompts.read_text(encoding="utf-8"))
    llm = LLM(arguments.model, dtype=arguments.dtype, max_model_len=1024, max_num_seqs=16, enforce_eager=True)
    sampling = SamplingParams(
        temperature=1.0, max_tokens=arguments.tokens, min_tokens=arguments.tokens, detokenize=False
    )
    result: dict[str, object] = {"version": __version__}
    for name, prompts in batches.items():
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        llm.generate(inputs[:1], sampling, use_tqdm=False)
        seconds, tokens = [], 0
        for _ in range(arguments.repeats):
            llm.reset_prefix_cache()
            start = time.process_time()
            outputs = llm.generate(inputs, sampling, use_tqdm=False)
            seconds.append(time.process_time() - start)
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        result[name] = {"tokens": tokens, "cpu_seconds": seconds}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
