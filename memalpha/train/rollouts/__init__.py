"""Collect rollouts from tasks."""
