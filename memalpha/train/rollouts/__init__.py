"""Rollouts of a training step: where tasks come from, how they are sampled and scored, second attempts."""
