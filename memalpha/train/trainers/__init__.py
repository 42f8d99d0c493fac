"""Trainers: one per kind of run, and the run directory that they share."""
