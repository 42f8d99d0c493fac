"""Embeddings as values of PostgreSQL statements: bytes in Python, the extension's `vector` on the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types import TypeInfo


class Vector(bytes):
    """Embedding as little-endian float32, bound to a vector column.

    Such a column is read as the same bytes.
    """


class _VectorLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> bytes:
        return _swap_bytes(bytes(data)[4:])  # skips the dimension and two unused bytes


class _VectorDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return (len(obj) // 4).to_bytes(2, "big") + b"\0\0" + _swap_bytes(obj)


def register_vectors(connection: psycopg.Connection, vector_type: TypeInfo) -> None:
    """Register how a connection sends and reads vectors."""
    vector_type.register(connection)
    connection.adapters.register_loader(vector_type.oid, _VectorLoader)
    connection.adapters.register_dumper(Vector, type("_VectorDumper", (_VectorDumper,), {"oid": vector_type.oid}))


def _swap_bytes(data: bytes) -> bytes:
    """Convert 4-byte floats between little-endian and big-endian."""
    return np.frombuffer(data, np.uint32).byteswap().tobytes()
