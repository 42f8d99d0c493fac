"""Adapters of other libraries and protocols to memalpha, each optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memalpha.errors import ConfigError, install_command


@contextmanager
def required_packages(use: str, *packages: str, extra: str = "serve") -> Iterator[None]:
    """Turn a failed import in the block into a `ConfigError` that says what to install.

    Args:
        use: Begin of the message: what needs the packages.
        packages: Top-level names of the packages. A missing module of any other raises `ModuleNotFoundError`.
        extra: Extra of memalpha that installs them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ConfigError(f"{use} needs {error.name}: {install_command(extra)}") from None
