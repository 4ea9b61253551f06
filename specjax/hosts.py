"""Several processes that run one program, each with its own devices: the hosts of a TPU pod, or processes of one host.

Every process runs the same code on the same request (SPMD). A mesh spans the devices of all processes, and XLA's
collectives are their only traffic while they decode. The rest is in this file:

    join            connects the processes, before any device is used
    lay, fetch      arrays of the host onto a mesh of several processes, and back
    agree           compares options, prompts and versions, so that a difference is an error and not a hang
    leader          the process that prints and writes files
    leader_first    what the leader prepares in a shared folder, and the others read
    StopTogether    a signal to one process ends all of them after the same step

With one process, all of them cost nothing. `agree` and `StopTogether` exchange short strings through the coordinator of
`jax.distributed`: unlike a collective, this works for processes that are not in the same program.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from specjax.types import PyTree

HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead, and the others end
PATIENCE = 600  # seconds that `agree` waits for the slowest process, which may be reading weights
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
TPU_WORKERS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")  # set by GKE

_rounds = itertools.count()  # of `agree`; equal on all processes, because they run one program
_open = 0  # the first round that this process has not answered, see `fail`


# --- joining ---------------------------------------------------------------------------------------------------------


def detected(environment: Mapping[str, str], *, tpu_vm: bool) -> bool:
    """Whether the environment is one in which `jax.distributed.initialize` needs no arguments, with several processes.

    Args:
      environment: environment variables.
      tpu_vm: whether this is a TPU VM; its metadata server lists the others.
    """
    if all(name in environment for name in SLURM):
        return int(environment["SLURM_NTASKS"]) > 1
    workers = next((environment[name] for name in TPU_WORKERS if name in environment), None)
    if workers is not None:
        slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
        return tpu_vm and (slices > 1 or len(workers.split(",")) > 1)
    return tpu_vm and "TPU_SKIP_MDS_QUERY" not in environment


def join(coordinator: str | None = None, processes: int | None = None, index: int | None = None) -> None:
    """Connects this process with the others of the program. Call it before any device is used; a second call does
    nothing.

    On GCE and GKE TPU slices and in Slurm steps, pass no arguments. Elsewhere, pass all of them. Without arguments and
    outside such an environment, this does nothing: the program is one process.

    Args:
      coordinator: "host:port" of process 0, a free port that all processes reach.
      processes: number of processes.
      index: of this process, 0 to processes - 1.

    Raises:
      ValueError: some of the arguments but not all, or an index out of range.
      RuntimeError: the processes did not find each other.

    >>> from specjax import hosts
    >>> hosts.join()  # on a laptop: one process
    >>> hosts.leader()
    True
    """
    given = {"coordinator": coordinator, "processes": processes, "process index": index}
    if _client() is not None:
        return
    if all(value is None for value in given.values()):
        from jax._src.cloud_tpu_init import running_in_cloud_tpu_vm

        if not detected(os.environ, tpu_vm=running_in_cloud_tpu_vm):
            return
    elif missing := [name for name, value in given.items() if value is None]:
        raise ValueError(f"{' and '.join(missing)} must be given too: {', '.join(given)} go together")
    else:
        assert coordinator is not None and processes is not None and index is not None
        if processes < 1 or not 0 <= index < processes:
            raise ValueError(f"index must be in 0..{processes - 1} for processes={processes}, got {index}")
        if not coordinator.rpartition(":")[2].isdecimal() or ":" not in coordinator:
            raise ValueError(f"coordinator must be HOST:PORT of process 0, got {coordinator!r}")
    # Its handler of SIGTERM would hide the signal from Python, and the other way around: see StopTogether.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator, processes, index, heartbeat_timeout_seconds=HEARTBEAT,
        cluster_detection_method=None if coordinator is None else "deactivate",
    )  # fmt: skip


def count() -> int:
    """Number of processes of the program."""
    return 1 if _client() is None else jax.process_count()


def leader() -> bool:
    """Whether this is the process that prints and writes files: process 0."""
    return _client() is None or jax.process_index() == 0


def _client() -> Any:
    """The connection to the coordinator; None in a program of one process. jax has no public name for it."""
    from jax._src import distributed

    return distributed.global_state.client


# --- arrays ----------------------------------------------------------------------------------------------------------


def lay(tree: PyTree, shardings: PyTree) -> PyTree:
    """`jax.device_put` that also places on devices of several processes.

    Arrays of the host, and arrays on the devices of this process alone, must be equal in all processes. Each process
    places its own shards of them; `jax.device_put` would send whole arrays between the processes to compare them.

    Args:
      tree: numpy or jax arrays, typed keys included.
      shardings: one for each array, or one for all.
    """
    if isinstance(shardings, Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    if all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings)):
        return jax.device_put(tree, shardings)
    return jax.tree.map(_lay, tree, shardings)


def _lay(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array):
        if leaf.sharding == sharding:
            return leaf
        if not leaf.is_fully_addressable:  # device_put of typed keys is not supported there
            return _identity(sharding)(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = _lay(np.asarray(jax.random.key_data(leaf)), sharding)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


@functools.lru_cache(maxsize=64)
def _identity(sharding: Sharding) -> Callable:
    return jax.jit(lambda tree: tree, out_shardings=sharding)


def replicate(tree: PyTree) -> PyTree:
    """The arrays whole on every device of their mesh, where they are spread over several processes; others as they
    are. All processes must call it."""

    def spread(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated

    leaves, structure = jax.tree.flatten(tree)
    parts = [leaf for leaf in leaves if spread(leaf)]
    if not parts:
        return tree
    whole = iter(_identity(NamedSharding(parts[0].sharding.mesh, P()))(parts))
    return jax.tree.unflatten(structure, [next(whole) if spread(leaf) else leaf for leaf in leaves])


def fetch(tree: PyTree) -> PyTree:
    """`jax.device_get` of arrays that may be spread over several processes, which must all call it.

    >>> import jax.numpy as jnp
    >>> from specjax import hosts
    >>> hosts.fetch({"tokens": jnp.arange(3)})
    {'tokens': array([0, 1, 2], dtype=int32)}
    """
    return jax.device_get(replicate(tree))


def check_mesh(mesh: Mesh) -> None:
    """Raises ValueError where a mesh spans several processes but not all: those outside would not run its programs, and
    wait for ever."""
    if count() == 1 or not mesh.is_multi_process:
        return
    inside = {device.process_index for device in mesh.devices.flat}
    if outside := sorted(set(range(count())) - inside):
        raise ValueError(
            f"the mesh has devices of {len(inside)} of {count()} processes, and none of process {outside[0]}: give it "
            "devices of all processes, or start fewer"
        )


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether devices of other processes are in the mesh."""
    return mesh is not None and count() > 1 and mesh.is_multi_process


# --- agreement -------------------------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """A hash of plain values, dataclasses and arrays.

    >>> from specjax import hosts
    >>> hosts.digest({"a": [1, 2.0], "b": None}) == hosts.digest({"b": None, "a": [1, 2.0]})
    True
    """

    def plain(one: Any) -> Any:
        if isinstance(one, np.ndarray):
            return [str(one.dtype), one.shape, hashlib.sha256(np.ascontiguousarray(one).tobytes()).hexdigest()]
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        return repr(one)

    return hashlib.sha256(json.dumps(value, sort_keys=True, default=plain).encode()).hexdigest()[:16]


def agree(**what: Any) -> None:
    """Compares values of all processes, which must call this in the same order. Costs nothing with one process.

    Args:
      what: plain values, dataclasses and arrays by name; short texts and numbers are quoted in the error.

    Raises:
      ValueError: the processes differ, or another one failed before it came here; the same on all of them.

    >>> from specjax import hosts
    >>> hosts.agree(seed=0, prompts=["Once"])
    """
    if count() == 1:
        return
    shown = {name: value for name, value in what.items() if len(str(value)) <= 40 and not isinstance(value, np.ndarray)}
    mine = {"digests": {name: digest(value) for name, value in what.items()}, "shown": shown}
    answers = _exchange(json.dumps(mine, default=str))
    failed = [f"process {number}: {one['error']}" for number, one in enumerate(answers) if "error" in one]
    if failed:
        raise ValueError(failed[0])
    first = answers[0]
    for name in dict.fromkeys(name for one in answers for name in one["digests"]):
        for number, one in enumerate(answers):
            if one["digests"].get(name) != first["digests"].get(name):
                values = [_shown(each, name) for each in (first, one)]
                quoted = f": {values[0]} and {values[1]}" if all(values) else ""
                raise ValueError(
                    f"processes 0 and {number} differ in {name}{quoted}: start all processes with the same command "
                    "and files"
                )


def _shown(answer: Mapping[str, Any], name: str) -> str:
    """A value for the error; empty for long ones."""
    if name not in answer["digests"]:
        return "absent"
    return repr(answer["shown"][name]) if name in answer["shown"] else ""


def _exchange(answer: str) -> list[dict[str, Any]]:
    """Publishes this process's answer of the next round and returns those of all."""
    global _open
    client, number = _client(), next(_rounds)
    _open = number + 1
    client.key_value_set(_key(number, jax.process_index()), answer)
    try:
        found = [client.blocking_key_value_get(_key(number, i), PATIENCE * 1000) for i in range(jax.process_count())]
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(f"another process did not come to the same point within {PATIENCE} s") from error
    return [json.loads(one) for one in found]


def _key(number: int, process: int) -> str:
    return f"specjax/agree/{number}/{process}"


def fail(message: str) -> None:
    """Reports that this process fails, so that the next `agree` of the others raises `message` instead of waiting."""
    client = _client()
    if client is None:
        return
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator has ended
        client.key_value_set(_key(_open, jax.process_index()), json.dumps({"error": message}))


def end_together(patience: float) -> bool:
    """Waits for the other processes to end, too, and disconnects; False if they do not come within `patience` seconds.

    A process that is still connected when the coordinator ends is aborted.
    """
    client = _client()
    if client is None:
        return True
    try:
        client.wait_at_barrier("specjax/end", int(patience * 1000))
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@contextlib.contextmanager
def leader_first() -> Iterator[None]:
    """Within it, the leader runs the block before the others do: it writes the files of a shared folder, which the
    others find."""
    if not leader():
        agree()
    yield
    if leader():
        agree()


# --- stopping --------------------------------------------------------------------------------------------------------


class StopTogether:
    """Whether all processes stop after a step: the same answer on each of them.

    A signal reaches one process, while the others may already have started later steps. The process that receives it
    publishes a step `ahead` of its own, and all stop there.

    Args:
      requested: whether this process was asked to stop.
      ahead: larger than the number of steps that any process can be ahead of another one.
    """

    def __init__(self, requested: Callable[[], bool], *, ahead: int):
        self._requested, self._ahead = requested, ahead
        self._at: int | None = None
        self._key = f"specjax/stop/{next(_stops)}"
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether the last step was the last one."""
        return self._requested() if count() == 1 else self._stopped

    def __call__(self, step: int) -> bool:
        """Whether `step` is the last one. Call it once after each step."""
        if count() == 1:
            return self._requested()
        client = _client()
        if self._at is None and self._requested():
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
                client.key_value_set(self._key, str(step + self._ahead))
        if self._at is None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # nobody was asked to stop
                self._at = int(client.key_value_try_get(self._key))
        self._stopped = self._at is not None and step >= self._at
        return self._stopped


_stops = itertools.count()
