"""Whose word a call of the writer rests on, and what that person may change."""
