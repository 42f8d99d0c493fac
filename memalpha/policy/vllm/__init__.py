"""Sampling on a vLLM server, tokens in and tokens out."""
