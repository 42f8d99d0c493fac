"""The idea of memalpha in one file: GRPO over rollouts of many contexts. Runs in about half a minute on one core.

    python scripts/tiny_grpo.py

A writer reads a conversation chunk by chunk and keeps a memory with one slot per key. Every chunk is a FRESH context:
the prompt holds the current memory and the chunk, nothing else. The writer answers with two tokens, `WRITE value` or
`SKIP skip`; a write replaces what the memory holds for the chunk's key. After the last chunk every key is asked. Some
chunks are gossip about a key, and writing those makes an answer wrong. The model starts from random weights, so it has
to learn all of this from reward alone.

Six stops: tasks, memory and tools, sampling, reward, advantages, update. The library does the same with text, tool
calls, a real store and a reader; the names below are the ones it uses.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import log_softmax

torch.manual_seed(0)
torch.set_num_threads(1)

# A token is a number. First come the keys, then the values, then five words with a meaning of their own.
KEYS, VALUES, CHUNKS = 6, 12, 5
EMPTY, WRITE, SKIP, FACT, GOSSIP = range(KEYS + VALUES, KEYS + VALUES + 5)
VOCABULARY = KEYS + VALUES + 5
PROMPT, COMPLETION = KEYS + 3, 2  # prompt: the memory's KEYS slots, then key, value, FACT or GOSSIP


# 1. Tasks: a conversation is a stream of chunks, and each chunk states a value for a key.
#    The last fact about a key is its true value. Gossip must be ignored.


def make_tasks(count: int) -> torch.Tensor:
    """Return random tasks (count, CHUNKS, 3): key, value and kind of each chunk, as tokens."""
    keys = torch.randint(0, KEYS, (count, CHUNKS))
    values = torch.randint(KEYS, KEYS + VALUES, (count, CHUNKS))
    kinds = torch.where(torch.rand(count, CHUNKS) < 0.7, FACT, GOSSIP)
    return torch.stack([keys, values, kinds], dim=-1)


# 2. Memory and tools: the memory is a value, and a completion is a tool call that returns a new memory.
#    The old memory stays as it was, so rollouts of one task cannot disturb each other.


def apply(memory: torch.Tensor, chunk: torch.Tensor, completion: torch.Tensor) -> torch.Tensor:
    """Apply one tool call per row to `memory` (rows, KEYS) and return the new memory.

    Only `WRITE value` changes anything, and only the slot of the chunk's key. Any other call is ignored.
    """
    value = completion[:, 1]
    is_valid = (completion[:, 0] == WRITE) & (value >= KEYS) & (value < KEYS + VALUES)
    slot = nn.functional.one_hot(chunk[:, 0], KEYS).bool()
    return torch.where(slot & is_valid[:, None], value[:, None], memory)


# 3. Sampling: the policy writes tokens, and we keep the log-prob of each. Training needs exactly this record.


class Policy(nn.Module):
    """A causal transformer of 0.1M parameters: the smallest model with a prompt, tokens and log-probs."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(PROMPT + COMPLETION, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probs (rows, length, VOCABULARY) of the next token at each position of `ids` (rows, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.layers(self.tokens(ids) + self.positions[: ids.shape[1]], mask=mask, is_causal=True)
        return log_softmax(self.head(hidden), dim=-1)

    @torch.no_grad()
    def sample(self, prompt: torch.Tensor, greedy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return completions (rows, COMPLETION) and the log-probs they were sampled with."""
        ids, logprobs = prompt, []
        for _ in range(COMPLETION):
            scores = self(ids)[:, -1]
            token = scores.argmax(-1, keepdim=True) if greedy else torch.multinomial(scores.exp(), 1)
            logprobs.append(scores.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
        return ids[:, prompt.shape[1] :], torch.cat(logprobs, dim=1)


def rollouts(policy: Policy, tasks: torch.Tensor, group_size: int, greedy: bool = False):
    """Roll out every task `group_size` times, one fresh context per chunk.

    Returns the repeated tasks, a (prompt, completion, logprobs) per chunk, and the final memory.
    """
    stream = tasks.repeat_interleave(group_size, dim=0)
    memory = torch.full((len(stream), KEYS), EMPTY)
    turns = []
    for index in range(CHUNKS):
        chunk = stream[:, index]
        prompt = torch.cat([memory, chunk], dim=1)
        completion, logprobs = policy.sample(prompt, greedy)
        memory = apply(memory, chunk, completion)
        turns.append((prompt, completion, logprobs))
    return stream, turns, memory


# 4. Reward: ask every key of the final memory. This is the only signal that a write was worth it.
#    The accuracy r1 belongs to the whole rollout. A small r4 says if a call fits its chunk, for that turn alone.


def reward(stream: torch.Tensor, turns: list, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rewards r_t = r1 + 0.1 r4_t (rows, CHUNKS) and accuracies r1 (rows,)."""
    truth = torch.full_like(memory, EMPTY)
    r4 = []
    for index, (_, completion, _) in enumerate(turns):
        chunk = stream[:, index]
        is_fact = chunk[:, 2] == FACT
        gold = torch.stack([torch.where(is_fact, WRITE, SKIP), torch.where(is_fact, chunk[:, 1], SKIP)], dim=1)
        truth = apply(truth, chunk, gold)
        r4.append((completion == gold).float().mean(1))
    accuracy = (memory == truth).float().mean(1)
    return accuracy[:, None] + 0.1 * torch.stack(r4, dim=1), accuracy


# 5. Group advantages: compare each turn with the same turn of the other rollouts of its task.
#    The group's mean is the baseline, so no value network is needed.


def advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return advantages (rows, CHUNKS): rewards minus the group's mean, over its standard deviation."""
    groups = rewards.view(-1, group_size, CHUNKS)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, correction=0, keepdim=True) + 0.01)).view(-1, CHUNKS)


# 6. The loss and the update: raise the probability of tokens with a positive advantage, within a clipped range.
#    A rollout of CHUNKS contexts becomes CHUNKS training rows, each with the advantage of its own turn.


def loss_sum(policy: Policy, prompt, completion, old, advantage, weight: float, clip: float = 0.2) -> torch.Tensor:
    """Return the clipped policy-gradient loss, a plain SUM over tokens.

    `weight` holds the whole reduction, so no split of the rows into micro-batches changes the gradient. `old` are the
    log-probs that the completion was sampled with.
    """
    logprobs = policy(torch.cat([prompt, completion], dim=1)[:, :-1])[:, -COMPLETION:]
    new = logprobs.gather(2, completion[..., None])[..., 0]
    ratio = (new - old).exp()  # 1 before the first update, when the same weights sample and score
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -weight * surrogate.sum()


def evaluate(policy: Policy, tasks: torch.Tensor) -> float:
    """Return the mean accuracy of greedy rollouts."""
    return float(reward(*rollouts(policy, tasks, 1, greedy=True))[1].mean())


def main(steps: int = 60, tasks_per_step: int = 16, group_size: int = 16) -> tuple[float, float]:
    """Train a policy from random weights; return its held-out accuracy before and after.

    Args:
        steps: Training steps, with fresh tasks in each.
        tasks_per_step: Tasks of a step.
        group_size: Rollouts per task.
    """
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    held_out = make_tasks(500)
    before = evaluate(policy, held_out)
    for step in range(steps):
        stream, turns, memory = rollouts(policy, make_tasks(tasks_per_step), group_size)
        rewards, accuracy = reward(stream, turns, memory)
        advantage = advantages(rewards, group_size).T.reshape(-1, 1)
        prompt, completion, old = (torch.cat(parts) for parts in zip(*turns, strict=True))
        order = torch.randperm(len(prompt))
        for rows in order.chunk(2):  # two optimizer steps: in the second the ratio has left 1, so the clip matters
            loss = loss_sum(policy, prompt[rows], completion[rows], old[rows], advantage[rows], 1 / len(rows))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            entropy = -float(old.mean())
            print(f"step {step:3d}  reward {rewards.mean():.2f}  accuracy {accuracy.mean():.2f}  entropy {entropy:.2f}")
    after = evaluate(policy, held_out)
    print(f"greedy, 500 held-out conversations: {before:.2f} before, {after:.2f} after")
    return before, after


if __name__ == "__main__":
    main()
