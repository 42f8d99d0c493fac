"""From memories to scores: readers, metrics, records and the reward."""
