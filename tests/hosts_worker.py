"""One of several processes that run the cases of `tests.hosts_cases`: COORDINATOR PROCESSES INDEX FOLDER CASE ..."""

import json
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    coordinator, processes, index, folder, *names = sys.argv[1:]
    from specjax import hosts

    hosts.join(coordinator, int(processes), int(index))
    import jax

    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_debug_key_reuse", True)
    from tests import hosts_cases

    cases = hosts_cases.CASES | hosts_cases.SLOW
    found = {}
    for name in names:
        started = time.perf_counter()
        try:
            found[name] = cases[name].run(Path(folder))
        except Exception:
            found[name] = traceback.format_exc()
        print(name, f"{time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        (Path(folder) / f"{index}.json").write_text(json.dumps(found))


main()
