"""Import of user-defined objects named `package.module:name` in a configuration."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from memalpha.errors import ConfigError


def import_object(name: str, key: str) -> Any:
    """Import the object `module:name`; modules of the working directory are found too.

    Args:
        name: `package.module:object`, or a dotted path behind the colon.
        key: Configuration key that error messages name.

    Raises:
        ConfigError: The name has another form, or nothing is found there.
    """
    module, colon, path = name.partition(":")
    if not (colon and module.strip() and path.strip()):
        raise ConfigError(f"{key}: {name!r}: write module:name, for example my_rewards:short_answers")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}: {name!r} cannot be found ({error}), also not in {here}") from error
    finally:
        sys.path.remove(here)
    return value
