"""The learner: weights, optimizer, losses, log-probs; futures are in `async_engine`."""
