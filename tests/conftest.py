"""Every test runs with strict promotion, on 8 fake CPU devices; tests that cannot or need not run are deselected.

Set before JAX starts, for the whole process: strictness is worth nothing where a test can forget it. Processes that
tests start inherit the platform, the compilation cache and how well to compile, not the strictness and not the 8
devices: they run as the user's would.
"""

import gc
import importlib.util
import os
import signal
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, which the other test processes pay for
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that reaches for the network is wrong

# A shell that starts this in the background has Ctrl-C ignored, here and in the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import jax
import jaxtyping
import pytest

FAKE_DEVICES = 8
MAPS, MOST_MAPS = 35_000, 60_000
jax.config.update("jax_num_cpu_devices", FAKE_DEVICES)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The same examples in every run; no deadline, because the first example compiles.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=30)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--checked", action="store_true", help="check shapes at run time, and keys for reuse (as -m does)")


def checked(config: pytest.Config) -> bool:
    return bool(config.option.checked or config.option.markexpr)


def pytest_configure(config: pytest.Config) -> None:
    """With -m or --checked: the annotated shapes of every function are checked, and keys for reuse, which takes a
    third as long again. Before specjax is imported.

    Without -m: programs are compiled quickly rather than well, which saves half of the time: LLVM optimizes nothing,
    and XLA's older emitters write it a quarter of the code. With -m (as for the slow tests and those beside torch)
    they are compiled as the user's are."""
    if checked(config):
        jaxtyping.install_import_hook("specjax", "beartype.beartype")
        jax.config.update("jax_debug_key_reuse", True)
    if not config.option.markexpr:
        flags = os.environ.get("XLA_FLAGS", "").split()
        quickly = [
            "--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_parallel_codegen_split_count=1",
        ]  # fmt: skip
        if jax.__version_info__ < (0, 11):  # later ones have no older emitters, and end at a flag they do not know
            quickly.append("--xla_cpu_use_fusion_emitters=false")
        os.environ["XLA_FLAGS"] = " ".join([*flags, *(one for one in quickly if one not in flags)])  # read at the start


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects `slow` unless -m chooses, `checked` where nothing is, and `torch` where torch is not installed."""
    unwanted = set() if checked(config) else {"checked"}
    if not config.option.markexpr:
        unwanted.add("slow")
    if importlib.util.find_spec("torch") is None:
        unwanted.add("torch")
    kept, dropped = [], []
    for item in items:
        marked = any(item.get_closest_marker(name) for name in unwanted)
        (dropped if marked else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now stays: the collector need not walk through it again and again."""
    del session
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_bounded():
    """Forgets compiled programs once there are many. Each holds memory maps, of which a process may have 65,530: a
    thousand tests use them up, and the compiler then dies of a segmentation fault. The library's own limit is above
    that: it would drop the programs of every request where other tests have used most of it."""
    from specjax import programs  # not before its annotations are checked

    programs.limit_programs(max_maps=MOST_MAPS)
    yield
    if programs.memory_maps() > MAPS:
        gc.unfreeze()
        jax.clear_caches()
        gc.collect()
        gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    """Says what the deselected tests wait for."""
    del config
    torch = "installed" if importlib.util.find_spec("torch") else "not installed, its live parity tests are deselected"
    return f"jax {jax.__version__}, {jax.device_count()} {jax.default_backend()} devices; torch {torch}"
