"""CONTRIBUTING.md, SECURITY.md and CITATION.cff: links lead somewhere, commits exist, versions agree."""

from __future__ import annotations

import re
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


def test_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and citation["title"] == "memalpha"
    assert str(citation["version"]) == memalpha.__version__ and citation["license"] == "Apache-2.0"
