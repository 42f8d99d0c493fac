"""Do the jobs of `memalpha.workers` on a Ray cluster instead of processes of this machine (extra `ray`).

The machines need memalpha, the policy's files under the same path, and a way to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from memalpha.errors import ConfigError, install_command


class RayPool:
    """Worker processes of Ray, of one CPU each.

    Args:
        address: `ray://HOST:PORT` of a cluster; None takes `RAY_ADDRESS`, or starts Ray on this machine.
        workers: Jobs done at the same time.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str | None = None, workers: int = 2) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(f"workers on Ray need the package ray: {install_command('ray')}") from None
        self._ray: Any = ray
        self.workers, self.died = workers, (RayError,)
        self._was_running = ray.is_initialized()
        try:
            if not self._was_running:
                ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise ConfigError(f"ray: no cluster at {address or 'RAY_ADDRESS'}: {error}") from error
        self._calls: list[Any] = []

    def schedule(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in one of the processes, which Ray keeps for the next call."""
        call = self._ray.remote(num_cpus=1, max_retries=0)(function).remote(*args)
        self._calls = [item for item in self._calls if item not in self._ray.wait(self._calls, timeout=0)[0]] + [call]
        return call.future()

    def stop(self) -> None:
        """End what the processes do."""
        for call in self._calls:
            self._ray.cancel(call, force=True)
        if not self._was_running:
            self._ray.shutdown()
