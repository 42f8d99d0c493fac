"""A memory system of your own under evaluation: it keeps the last turns that share a word with the question.

python examples/own_system.py
PYTHONPATH=examples memalpha eval synthetic limit=4 systems=own_system:WordOverlap,rag
"""

import argparse
import re

from memalpha import load_tasks
from memalpha.qa.evaluate import run_systems
from memalpha.qa.reader import load_reader
from memalpha.qa.systems import Passage


def words(text):
    """Return the set of lower-case words of a text."""
    return set(re.findall(r"\w+", text.lower()))


class WordOverlap:
    """Keep every turn; return those that share the most words with the question, newest first among equals."""

    name = "word-overlap"

    def __init__(self, k):
        self.k = k
        self.passages = []

    def read(self, chunk):
        """Store the turns of the next chunk."""
        for turn in chunk.turns:
            source = (turn.id,) if turn.id else ()
            order = len(self.passages)
            text = f"{turn.speaker}: {turn.text}"
            self.passages.append(Passage(text, str(order), timestamp=chunk.timestamp, turns=source, order=order))

    def context(self, question):
        """Return passages for a question, best first."""
        question_words = words(question)

        def rank(passage):
            return -len(question_words & words(passage.text)), -passage.order

        return sorted(self.passages, key=rank)[: self.k]

    def size(self):
        """Return the size of the memory in tokens (characters / 4)."""
        return sum(len(passage.text) for passage in self.passages) // 4

    def entries(self):
        """Return all passages, so that wrong answers can be classified."""
        return self.passages


def main():
    """Evaluate the system beside search over turns."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tasks", type=int, default=4)
    tasks = load_tasks("synthetic", limit=parser.parse_args().tasks)
    for report in run_systems(["own_system:WordOverlap", "rag"], tasks, load_reader("extractive")):
        print(f"{report.name}: accuracy {report.summary['accuracy']:.3f}")


if __name__ == "__main__":
    main()
