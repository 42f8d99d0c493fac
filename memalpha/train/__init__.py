"""Training: rollouts become samples, samples become gradients. `scripts/tiny_grpo.py` is the idea in one file."""
