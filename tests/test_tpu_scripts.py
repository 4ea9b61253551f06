"""The launchers of tpu_scripts/, with a `gcloud` that records its arguments and plays a preemption."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

SCRIPTS = Path(__file__).resolve().parents[1] / "tpu_scripts"
PLACE = {"NAME": "opt", "ZONE": "us-west4-a", "ACCELERATOR": "v5litepod-16", "POLL": "0"}
JOB = ["specjax", "job", "run", "gs://b/p.jsonl", "--out", "gs://b/it's out"]
GCLOUD = """#!{python}
import json, pathlib, sys
home = pathlib.Path(__file__).parent
args = sys.argv[1:]
with (home / "calls").open("a") as calls:
    calls.write(json.dumps(args) + "\\n")
name = "describe" if "describe" in args else "ssh" if "ssh" in args else ""
answers = home / name
if name and answers.exists():
    first, *rest = answers.read_text().splitlines()
    if rest:
        answers.write_text("\\n".join(rest))
    if name == "describe":
        if first == "ABSENT":
            sys.exit(1)
        print(first)
    else:
        sys.exit(int(first))
"""


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """(script, arguments, states of the resource, exit codes of ssh) -> exit code, and the calls of gcloud."""
    (tmp_path / "gcloud").write_text(GCLOUD.format(python=sys.executable))
    (tmp_path / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def run(script: str, *args: str, states: str = "ACTIVE", ssh: str = "0", **given: str):
        (tmp_path / "calls").write_text("")
        (tmp_path / "describe").write_text(states.replace(" ", "\n"))
        (tmp_path / "ssh").write_text(ssh.replace(" ", "\n"))
        ran = subprocess.run(
            [SCRIPTS / script, *args], env={**os.environ, **PLACE, **given}, capture_output=True, text=True, timeout=60
        )
        return ran, [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return run


def verbs(calls: list[list[str]]) -> list[str]:
    """create, delete, scp and ssh, without looks at the state."""
    known = ("create", "delete", "scp", "ssh")
    return [word for call in calls for word in call if word in known]


def test_a_job_survives_a_preemption(cloud):
    """Absent, created, suspended before it runs, created again, preempted while it runs, created a third time, done."""
    ran, calls = cloud(
        "queued_resource.sh", "watch", "--spot", "--", *JOB,
        states="ABSENT WAITING_FOR_RESOURCES PROVISIONING SUSPENDED SUSPENDED PROVISIONING ACTIVE SUSPENDED SUSPENDED "
        "ACTIVE",
        ssh="0 255 0 0",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    setup = ["scp", "ssh"]
    again = ["delete", "create"]
    assert verbs(calls) == ["create", *again, *setup, "ssh", *again, *setup, "ssh"]
    created = next(call for call in calls if "create" in call)
    assert created[:5] == ["compute", "tpus", "queued-resources", "create", "opt"]
    assert {
        "--zone=us-west4-a", "--node-id=opt", "--accelerator-type=v5litepod-16", "--spot",
        "--runtime-version=v2-alpha-tpuv5-lite",
    } < set(created)  # fmt: skip
    assert all("--force" in call for call in calls if "delete" in call)


@pytest.mark.slow
def test_a_command_that_fails_on_a_healthy_pod_ends_the_watch(cloud):
    """Bad input at once, other failures after RETRIES."""
    ran, calls = cloud("queued_resource.sh", "watch", "--", *JOB, ssh="0 2")
    assert ran.returncode == 2 and verbs(calls) == ["scp", "ssh", "ssh"]
    ran, calls = cloud("queued_resource.sh", "watch", "--", *JOB, ssh="0 1 0 1", RETRIES="2")
    assert ran.returncode == 1 and verbs(calls) == ["scp", "ssh", "ssh"] * 2


def test_one_command_on_all_workers(cloud):
    """Arguments arrive as they were written; the compile cache is shared."""
    ran, calls = cloud("queued_resource.sh", "run", *JOB, CACHE="gs://b/programs")
    (call,) = calls
    assert ran.returncode == 0 and "--worker=all" in call and call[:4] == ["compute", "tpus", "tpu-vm", "ssh"]
    remote = call[-1].removeprefix("--command=")
    shown = 'printf "%s|" "$JAX_COMPILATION_CACHE_DIR"; shift 0; printf "%s|" "$@"'
    script = remote.replace("cd specjax && ", "").replace("specjax job", f"bash -c '{shown}' specjax job", 1)
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split("|")[:-1] == ["gs://b/programs", *JOB[1:]]


@pytest.mark.parametrize(
    ("states", "code"), [("WAITING_FOR_RESOURCES CREATING ACTIVE", 0), ("PROVISIONING FAILED", 1), ("ABSENT", 1)]
)
def test_wait(states, code, cloud):
    ran, calls = cloud("queued_resource.sh", "wait", states=states)
    assert ran.returncode == code and len(calls) == len(states.split())


def test_create_reserved_and_delete(cloud):
    _, calls = cloud("queued_resource.sh", "create", "--reserved", ACCELERATOR="v6e-8", PROJECT="p")
    assert {"--reserved", "--runtime-version=v2-alpha-tpuv6e", "--project=p"} < set(calls[0])
    _, calls = cloud("queued_resource.sh", "delete")
    assert calls == [
        ["compute", "tpus", "queued-resources", "delete", "opt", "--zone=us-west4-a", "--force", "--quiet"]
    ]


@pytest.mark.parametrize(
    ("args", "given", "name"),
    [
        (["queued_resource.sh", "create", "--sport"], {}, "--sport"), (["queued_resource.sh"], {}, "usage"),
        (["queued_resource.sh", "create"], {"ZONE": ""}, "ZONE"), (["pod.sh", "run"], {}, "command"),
        (["queued_resource.sh", "create"], {"ACCELERATOR": "v9"}, "RUNTIME"),
        (["render.sh", "jobset.yaml", "x"], {}, "IMAGE"),
        (["render.sh", "jobset.yaml", "x"], {"IMAGE": "i", "TOPOLOGY": "2x3", "CHIPS": "4"}, "CHIPS"),
    ],
)  # fmt: skip
def test_bad_calls_are_one_line(args, given, name, cloud):
    ran, calls = cloud(*args, **given)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and name in ran.stderr and not calls


def render(template: str, *command: str, **given: str) -> str:
    chosen = {
        "NAME": "opt", "IMAGE": "registry/specjax:1", "TOPOLOGY": "4x4", "ACCELERATOR": "tpu-v5-lite-podslice",
        "SLICES": "3", **given,
    }  # fmt: skip
    command = [SCRIPTS / "render.sh", template, *command]
    return subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True, check=True).stdout


def test_a_jobset_of_independent_slices():
    """As many replicas as slices, each of all its hosts; a pod that fails ends its slice at once. The slices do not
    hear of each other."""
    found = yaml.safe_load(render("jobset.yaml", *JOB, "--of", "3", 'a"b\\', SPOT="true", CACHE="gs://b/programs"))
    (group,) = found["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    assert (group["replicas"], spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (3, 4, 4, 0)
    assert spec["completionMode"] == "Indexed" and found["spec"]["failurePolicy"]["maxRestarts"] == 100
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never" and pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert container["args"] == [*JOB, "--of", "3", 'a"b\\'] and container["resources"]["limits"] == {
        "google.com/tpu": 4
    }
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["JAX_COMPILATION_CACHE_DIR"]["value"] == "gs://b/programs" and "valueFrom" in env["JOB_INDEX"]
    show = ["bash", "-c", 'echo "${MEGASCALE_NUM_SLICES:-one}" "$1"', "x", "it's"]
    ran = subprocess.run(
        [*container["command"], *show], env={**os.environ, "MEGASCALE_NUM_SLICES": "3"}, capture_output=True, text=True
    )
    assert ran.stdout == "one it's\n"


def test_a_jobset_of_training_is_one_program():
    found = yaml.safe_load(render("jobset_training.yaml", "specjax", "train", "lm", HOSTS="2"))
    (group,) = found["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    assert (group["replicas"], group["template"]["spec"]["parallelism"]) == (3, 2)
    assert [entry["name"] for entry in container["env"]] == ["JAX_PLATFORMS"] and container["command"] == ["env"]
    assert "gke-spot" not in group["template"]["spec"]["template"]["spec"]["nodeSelector"]


def tool(name: str) -> str | None:
    """A program of the extra `test`, beside Python or on the PATH."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


if SHELLCHECK := tool("shellcheck"):

    def test_shellcheck():
        subprocess.run([str(SHELLCHECK), "-x", *sorted(SCRIPTS.glob("*.sh"))], check=True)


if YAMLLINT := tool("yamllint"):

    @pytest.mark.parametrize("template", ["jobset.yaml", "jobset_training.yaml"])
    def test_yamllint(template):
        rules = "{extends: relaxed, rules: {line-length: {max: 120}}}"
        text = render(template, *JOB, CACHE="gs://b/programs", SPOT="true")
        subprocess.run([str(YAMLLINT), "-s", "-d", rules, "-"], input=text, text=True, check=True)


def test_the_ray_example_decodes_batches(monkeypatch):
    """With a ray that maps in this process: every row has its own random stream, and batches are of one size."""
    from specjax import config

    rows, decoded, out = {"prompt": ["Once", "The old"], "row": [5, 7]}, [], []

    class Dataset:
        def map_batches(self, kind, *, fn_constructor_args, batch_size, concurrency, resources):
            assert (batch_size, concurrency, resources) == (16, 2, {"TPU": 8})
            out.append(kind(*fn_constructor_args)(rows))
            return self

        def write_json(self, path):
            out.append(path)

    def generate(prompts, *, rows):
        decoded.append((prompts, rows))
        return types.SimpleNamespace(texts=[f"text {row}" for row in rows], stop_reasons=["eos"] * len(rows))

    def build(given):
        assert (given.target, given.draft, given.max_new_tokens) == ("bundled/opt-tiny", ("bundled/opt-tiny",), 4)
        return types.SimpleNamespace(generate=generate)

    ray = types.ModuleType("ray")
    vars(ray)["data"] = types.SimpleNamespace(read_json=lambda path: Dataset())
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(config, "build", build)
    models = ["--target", "bundled/opt-tiny", "--draft", "bundled/opt-tiny", "--new-tokens", "4"]
    monkeypatch.setattr(sys, "argv", ["ray_data.py", "in.jsonl", "out", "--hosts", "2", *models])
    runpy.run_path(str(SCRIPTS / "ray_data.py"), run_name="__main__")
    assert decoded == [(["Once", "The old", *["Once"] * 14], [5, 7, *[5] * 14])]
    assert out == [{**rows, "text": ["text 5", "text 7"], "stop": ["eos"] * 2}, "out"]
