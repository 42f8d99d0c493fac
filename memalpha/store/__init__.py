"""The memory: a pure state, a durable store over it, and search. Knows nothing of agents, models or rewards."""
