"""Find contradictions and gaps in a memory, and damage in a file."""
