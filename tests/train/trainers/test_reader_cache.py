"""A run whose frozen reader keeps its answers gives the same run as one that samples each of them."""

from __future__ import annotations

from runs import lines, same, weights

from memalpha.policy.reply_cache import ReplyCache
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.api import train


def test_a_cached_reader_changes_no_bit_of_a_run(small, tmp_path, monkeypatch):
    reader = {"kind": "policy", "max_new_tokens": 4}
    requests = {"cached": 0, "sampled": 0}
    sample, ask = TransformersPolicy.sample, ReplyCache.ask

    def count(name, method):
        def counting(self, items):
            requests[name] += len(items)
            return method(self, items)

        return counting

    monkeypatch.setattr(TransformersPolicy, "sample", count("sampled", sample))
    monkeypatch.setattr(ReplyCache, "ask", count("cached", ask))
    first, second = (small(reader=reader, max_steps=3, out=str(tmp_path / name)) for name in ("kept", "sampled"))
    train(first)
    assert 0 < requests["sampled"] < requests["cached"], "fewer are sampled than asked"
    monkeypatch.setattr(ReplyCache, "ask", lambda self, items: self.policy.sample(items))
    train(second)
    assert same(weights(first.out, 3), weights(second.out, 3))
    for name in ("before", "after", "oracle"):
        files = [run.out / "eval" / f"{name}.jsonl" for run in (first, second)]
        assert files[0].read_bytes() == files[1].read_bytes()
    shares = [line["reader_cached"] for line in lines(first.out / "metrics.jsonl")]
    assert len(shares) == 3 and all(0 <= share <= 1 for share in shares)
    assert [line["reward"] for line in lines(first.out / "metrics.jsonl")] == [
        line["reward"] for line in lines(second.out / "metrics.jsonl")
    ]
