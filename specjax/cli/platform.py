"""What other packages are told by environment variables before they are imported, so that they print only what helps.

jax: on a machine with libtpu but no TPU it would print pages of warnings. The hub's client: its progress bars become
many lines where stderr is no terminal.
"""

import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

TPU_DEVICES = ("accel*", "vfio/*")  # under /dev


def wanted(
    environment: Mapping[str, str], *, libtpu: bool, tpu_devices: Collection[str], plugins: Collection[str]
) -> str | None:
    """What JAX_PLATFORMS should be set to; None leaves the choice to jax.

    "cpu" where libtpu is installed, the machine has no TPU, and nothing else could be an accelerator. What the user
    chose stands.

    Args:
      libtpu: whether it is installed.
      tpu_devices: device files of TPUs.
      plugins: jax's plugins for other accelerators.
    """
    chosen = any(name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME") or name.startswith("TPU_") for name in environment)
    return "cpu" if libtpu and not (chosen or tpu_devices or plugins) else None


def choose() -> None:
    """Sets them for this process; what the user has set stands. Call it before jax is imported."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if importlib.util.find_spec("libtpu") is None:  # the usual case, which costs nothing
        return
    devices = [str(path) for pattern in TPU_DEVICES for path in Path("/dev").glob(pattern)]
    platform = wanted(os.environ, libtpu=True, tpu_devices=devices, plugins=plugins())
    if platform is not None:
        os.environ["JAX_PLATFORMS"] = platform


def plugins() -> list[str]:
    """Names of jax's plugins: they announce themselves by an entry point, or lie in the package jax_plugins."""
    found = [entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")]
    spec = importlib.util.find_spec("jax_plugins")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return found + [module.name for module in pkgutil.iter_modules(places)]
