"""Rewards of text tasks: named functions of prompt, reply and columns, summed by weight."""
