"""One writer over one memory: what it sees, what it may call, and how its text is read."""
