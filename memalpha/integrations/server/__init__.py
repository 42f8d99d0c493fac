"""Serve a store over HTTP and MCP."""
