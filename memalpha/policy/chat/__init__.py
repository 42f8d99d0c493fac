"""Chat templates of model families: prompts in the family's form, replies in one form for all."""
