"""Devices: memory, speed and bandwidth, published or measured here in under a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from memalpha.errors import ConfigError

GIGA = 10**9
MATRIX_UTILIZATION = 0.4
"""Share of a GPU's published peak that training with transformers is assumed to reach."""
BANDWIDTH_UTILIZATION = 0.6
"""Share of a GPU's published bandwidth that decoding is assumed to reach."""
LAYER_SECONDS = 5e-4
"""Assumed least time of a layer in a decoding step on a GPU: its kernels are launched one by one."""
GPU_PROCESS_BYTES = 700_000_000
"""Assumed memory of a process on a GPU beside tensors: context, libraries, workspaces."""


@dataclass(frozen=True, slots=True)
class Device:
    """Speed and size of a device.

    Attributes:
        name: Name in the plan.
        memory: Bytes, None if unknown.
        flops: Operations per second in large products.
        bandwidth: Bytes per second.
        layer_seconds: Least time of a layer in a decoding step.
        basis: Words on where the figures come from.
        weights_per_second: Measured weights that a decoding step passes per second; None: bandwidth and flops decide.
    """

    name: str
    memory: int | None
    flops: float
    bandwidth: float
    layer_seconds: float
    basis: str
    weights_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class _Published:
    memory: float
    bfloat16: float
    float32: float
    bandwidth: float


# GB, TFLOPS of dense bfloat16 products with float32 sums, TFLOPS of float32 without tensor cores, GB/s.
# NVIDIA's data sheets: H100 SXM, H200 SXM, A100 80GB SXM, A100 40GB SXM, L40S, L4, A10, RTX 4090 and 3090 (Ada and
# Ampere GA102 architecture white papers), RTX A6000.
GPUS: Mapping[str, _Published] = {
    "h200": _Published(141, 989, 67, 4800),
    "h100": _Published(80, 989, 67, 3350),
    "a100": _Published(80, 312, 19.5, 2039),
    "a100-40gb": _Published(40, 312, 19.5, 1555),
    "l40s": _Published(48, 362, 91.6, 864),
    "a6000": _Published(48, 155, 38.7, 768),
    "l4": _Published(24, 121, 30.3, 300),
    "a10": _Published(24, 125, 31.2, 600),
    "4090": _Published(24, 165, 82.6, 1008),
    "3090": _Published(24, 71, 35.6, 936),
}


def published_gpu(name: str, dtype: str) -> Device:
    """Return a GPU by its short name, with its published figures at the assumed utilization.

    Raises:
        ConfigError: The table has no such GPU.
    """
    key = name.lower().replace("rtx", "").strip(" -")
    if key not in GPUS:
        raise ConfigError(f"--gpu {name}: no figures for this one; known are {', '.join(GPUS)}")
    gpu = GPUS[key]
    flops = (gpu.bfloat16 if dtype == "bfloat16" else gpu.float32) * 10**12
    return Device(
        key,
        int(gpu.memory * GIGA),
        MATRIX_UTILIZATION * flops,
        BANDWIDTH_UTILIZATION * gpu.bandwidth * GIGA,
        LAYER_SECONDS,
        f"published peak ({flops / 10**12:g} TFLOPS in {dtype}, {gpu.bandwidth:g} GB/s) times an assumed "
        f"{MATRIX_UTILIZATION:.0%} and {BANDWIDTH_UTILIZATION:.0%}",
    )


def measure_device(name: str, dtype: str, threads: int, hidden: int, inner: int, rows: int) -> Device:
    """Measure products of the model's own shape on a device that is here.

    Args:
        name: torch device.
        dtype: Precision of the products.
        threads: torch threads.
        hidden: Hidden size.
        inner: Size of a feed-forward layer.
        rows: Rows that are decoded at once.

    Returns:
        The device with its measured speeds.
    """
    device = torch.device(name)
    is_cpu = device.type == "cpu"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    kind: torch.dtype = getattr(torch, dtype)
    size = torch.empty((), dtype=kind).element_size()
    hidden, inner = min(hidden, 4096), min(inner, 16384)
    # More weights than a processor's cache holds, so that decoding reads memory.
    copies = max(1, min(32, (128 if is_cpu else 512) * 10**6 // (hidden * inner * size)))
    with torch.inference_mode():
        weights = torch.full((copies, hidden, inner), 0.01, dtype=kind, device=device)
        wide = torch.full((512 if is_cpu else 4096, hidden), 0.01, dtype=kind, device=device)
        narrow = wide[:rows]
        seconds = _time(lambda index: wide @ weights[index % copies], is_cpu)
        flops = 2 * wide.numel() * inner / seconds
        per_product = _time(lambda index: narrow @ weights[index % copies], is_cpu)
    torch.set_num_threads(before)
    bandwidth = hidden * inner * size / per_product
    if is_cpu:
        memory, words = ram_bytes(), f"measured here: {flops / GIGA:.0f} GFLOPS in {dtype}, {threads} thread(s)"
    else:
        memory = torch.cuda.mem_get_info(device)[1]
        words = f"measured here on {torch.cuda.get_device_name(device)}: {flops / 10**12:.0f} TFLOPS in {dtype}"
    layer_seconds = 0.0 if is_cpu else LAYER_SECONDS
    return Device(name, memory, flops, bandwidth, layer_seconds, words, hidden * inner / per_product)


def is_present(name: str) -> bool:
    """Return True if torch can use the device here."""
    return torch.device(name).type == "cpu" or torch.cuda.is_available()


def ram_bytes() -> int | None:
    """Return the machine's memory in bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _time(product: Callable[[int], torch.Tensor], is_cpu: bool, budget: float = 0.3) -> float:
    """Return the seconds of a product, the mean over `budget` seconds after one that warms up."""
    product(0)
    if not is_cpu:
        torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < budget or not count:
        product(count)
        count += 1
        if not is_cpu:
            torch.cuda.synchronize()
    return (time.perf_counter() - start) / count
