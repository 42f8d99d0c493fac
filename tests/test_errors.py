"""The hint for a missing package: it fits how memalpha is installed."""

from pathlib import Path

import pytest

from memalpha import errors
from memalpha.errors import install_command


def test_a_checkout_is_installed_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "memalpha"\n')
    monkeypatch.setattr(errors, "_PARENT", tmp_path)
    assert install_command("train") == f"pip install '{tmp_path}[train]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("train") == "pip install '.[train]'"


@pytest.mark.parametrize("project", [None, "other"])
def test_an_installed_package_comes_from_the_index(
    project: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if project:
        (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    monkeypatch.setattr(errors, "_PARENT", tmp_path)
    assert install_command("eval") == "pip install 'memalpha[eval]'"
