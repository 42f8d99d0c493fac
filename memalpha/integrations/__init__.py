"""Adapters of other libraries and protocols to memalpha, each optional."""
