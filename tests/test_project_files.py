"""CONTRIBUTING.md, SECURITY.md and CITATION.cff: links lead somewhere, commits exist, versions agree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import memalpha

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_links_and_paths_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    paths = re.findall(r"(?<![\w/.])(?:\./)?((?:\.ci|data|docs|eval|memalpha|scripts|tests)/[\w./-]*)", text)
    missing = [path for path in (*links, *(path.rstrip(".") for path in paths)) if not (ROOT / path).exists()]
    assert not missing, missing


def test_named_commits_are_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    state = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False)
    if state.returncode != 0 or state.stdout.strip() != "false":
        pytest.skip("no git repository with its whole history")
    commits = re.findall(r"`([0-9a-f]{7})`", CONTRIBUTING)
    assert len(commits) >= 6
    for commit in commits:
        assert subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], check=False).returncode == 0, (
            commit
        )


def test_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and citation["title"] == "memalpha"
    assert str(citation["version"]) == memalpha.__version__ and citation["license"] == "Apache-2.0"
