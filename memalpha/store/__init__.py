"""Memory store: pure state, durable stores over it, and search. Knows nothing of agents, models or rewards."""
