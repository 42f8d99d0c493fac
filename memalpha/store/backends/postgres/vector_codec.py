"""Embeddings as values of PostgreSQL's statements: bytes here, the extension's `vector` there."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types import TypeInfo


class Vector(bytes):
    """An embedding, little-endian float32, to be bound to a column of vectors. Such a column is read as these bytes."""


class _VectorLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> bytes:
        return _swap_bytes(bytes(data)[4:])  # before it: the dimension, and two bytes of nothing


class _VectorDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return (len(obj) // 4).to_bytes(2, "big") + b"\0\0" + _swap_bytes(obj)


def register_vectors(connection: psycopg.Connection, vector_type: TypeInfo) -> None:
    """Let a connection know how to send and read them."""
    vector_type.register(connection)
    connection.adapters.register_loader(vector_type.oid, _VectorLoader)
    connection.adapters.register_dumper(Vector, type("_VectorDumper", (_VectorDumper,), {"oid": vector_type.oid}))


def _swap_bytes(data: bytes) -> bytes:
    """Floats of 4 bytes each, from little-endian to big-endian or back."""
    return np.frombuffer(data, np.uint32).byteswap().tobytes()
