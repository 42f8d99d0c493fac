"""The default search beside its routes on sentences in other languages, without a reader.

    python eval/qa/search_languages.py DATA

DATA holds XQuAD's files (google-deepmind/xquad), xquad.LANGUAGE.json, and the development sets of JaQuAD
(SkelterLabsInc/JaQuAD), jaquad_dev_*.json, of CMRC 2018 (ymcui/cmrc2018), cmrc2018_dev.json of squad-style-data, of
DRCD (DRCKnowledgeTeam/DRCD), DRCD_dev.json, and of KQMA (yuntaeyang/Korean-Mental-health-Question-Answering),
KQMA_kor_v1_dev.json. A pool is the sentences of 12 articles (of CMRC and KQMA 60, of a paragraph each), a paragraph a
chunk. The evidence of a question is the sentence in which its answer begins. Thai has no sentence marks,
so most of its paragraphs are one text. In `mixed` the articles are in Chinese, Arabic, German and English in turn, each
with its questions. `ja` and `code-mixed` are small chats of our own (`eval/qa/pools/`). Writes search-languages.json
and the table of search-languages.md to --results; `--sets` measures some sets again and keeps the other rows.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.qa.search_benchmark import EvidenceRanks, measure_task, summarize_ranks
from memalpha.tasks.load import load_tasks
from memalpha.types import Chunk, Question, SpeakerTurn, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import make_parser, replace_table

METHODS = ("bm25", "dense", "flat", "soft", "spans")
LANGUAGES = ("zh", "ar", "de", "ru", "hi", "th")
MIXED = ("zh", "ar", "de", "en")
OTHERS = {
    "jaquad": "jaquad_dev_*.json",
    "cmrc": "cmrc2018_dev.json",
    "drcd": "DRCD_dev.json",
    "kqma": "KQMA_kor_v1_dev.json",
}
PARAGRAPHS = ("cmrc", "kqma")  # whose articles have one paragraph each
SETS = (*LANGUAGES, "mixed", *OTHERS, "ja", "code-mixed")
POOLS = Path(__file__).parent / "pools" / "languages.jsonl"
ARTICLES = 12
SENTENCE = re.compile(r".+?(?:[.!?\u0964](?=\s|$)|[\u3002\uff01\uff1f]|$)", re.DOTALL)
RESAMPLES = 10_000
HEAD = "| set | questions | route | recall@5 | recall@10 | mrr | tokens@10 | recall@10 over bm25 |"
MARK = "<!-- table -->"

Articles = Sequence[dict[str, Any]]


def load_articles(data: Path, language: str) -> Articles:
    """Return the articles of a language, or of a set of OTHERS."""
    pattern = OTHERS.get(language, f"xquad.{language}.json")
    files = sorted(data.glob(pattern))
    if not files:
        raise FileNotFoundError(f"no {pattern} in {data}")
    return [article for file in files for article in json.loads(file.read_text(encoding="utf-8"))["data"]]


def make_pools(articles: Articles, size: int = ARTICLES) -> list[Task]:
    """Return a task for every `size` articles."""
    return [_pool(f"pool-{start}", articles[start : start + size]) for start in range(0, len(articles), size)]


def _pool(name: str, articles: Articles) -> Task:
    chunks, questions = [], []
    for number, article in enumerate(articles):
        for index, paragraph in enumerate(article["paragraphs"]):
            sentences = [match for match in SENTENCE.finditer(paragraph["context"]) if match[0].strip()]
            ids = [f"{number}:{index}:{at}" for at in range(len(sentences))]
            turns = [
                SpeakerTurn(speaker="user", text=match[0].strip(), id=id)
                for match, id in zip(sentences, ids, strict=True)
            ]
            chunks.append(Chunk(turns=tuple(turns), index=len(chunks)))
            for question in paragraph["qas"]:
                start = question["answers"][0]["answer_start"]
                evidence = tuple(
                    id for match, id in zip(sentences, ids, strict=True) if match.start() <= start < match.end()
                )
                questions.append(Question(id=question["id"], question=question["question"], evidence=evidence))
    return Task(id=name, chunks=tuple(chunks), questions=tuple(questions))


def difference(ranks: Sequence[EvidenceRanks], base: Sequence[EvidenceRanks]) -> tuple[float, float, float]:
    """Return the difference in recall@10 and its 95 % bootstrap interval over questions."""
    gains = np.array([item.recall(10) - other.recall(10) for item, other in zip(ranks, base, strict=True)])
    drawn = np.random.default_rng(0).integers(len(gains), size=(RESAMPLES, len(gains)))
    low, high = np.quantile(gains[drawn].mean(1), [0.025, 0.975])
    return round(float(gains.mean()), 4), round(float(low), 4), round(float(high), 4)


def load_sets(data: Path, names: Sequence[str]) -> dict[str, list[Task]]:
    """Return the tasks of each set."""
    pools = {task.id: [task] for task in load_tasks(POOLS)}
    squads = [name for name in names if name in (*LANGUAGES, *OTHERS)]
    languages = [*squads, *(MIXED if "mixed" in names else ())]
    articles = {language: load_articles(data, language) for language in dict.fromkeys(languages)}
    sets = {
        name: make_pools(articles[name], 60 if name in PARAGRAPHS else ARTICLES)
        if name in squads
        else pools.get(name, [])
        for name in names
    }
    if "mixed" in names:
        mixed = [articles[MIXED[index % len(MIXED)]][index] for index in range(len(articles["en"]))]
        sets["mixed"] = make_pools(mixed)
    return sets


def measure(sets: Mapping[str, Sequence[Task]]) -> list[dict[str, Any]]:
    """Return a row per set and route."""
    rows = []
    for name, tasks in sets.items():
        ranks: dict[str, list[EvidenceRanks]] = {method: [] for method in METHODS}
        began = time.process_time()
        for task in tasks:
            for method, task_ranks in measure_task(task, "static", METHODS).items():
                ranks[method] += task_ranks
        for method, collected in ranks.items():
            gain = difference(collected, ranks["bm25"])
            rows.append({"set": name, "route": method, **summarize_ranks(collected), "gain": gain})
        rows[-1]["cpu_s"] = round(time.process_time() - began, 1)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for row in rows:
        gain = "" if row["route"] == "bm25" else "{:+.3f} ({:+.3f} to {:+.3f})".format(*row["gain"])
        route = "**default**" if row["route"] == "soft" else row["route"]
        figures = [f"{row[key]:.3f}" for key in ("recall@5", "recall@10", "mrr")]
        cells = [row["set"], f"{row['questions']:,}", route, *figures, f"{row['tokens@10']:,.0f}", gain]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the record and its page."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    options = parser.parse_args()
    record = options.results / "search-languages.json"
    before = json.loads(record.read_text(encoding="utf-8"))
    new = measure(load_sets(options.data, options.sets))
    rows = [row for name in SETS for row in (new if name in options.sets else before) if row["set"] == name]
    record.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    replace_table(options.results / "search-languages.md", MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
