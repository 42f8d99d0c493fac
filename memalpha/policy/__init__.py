"""Policies sample text: language models, and scripts. They know nothing of stores, tools or rewards."""
