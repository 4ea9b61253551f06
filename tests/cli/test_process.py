"""JAX_PLATFORMS is set only where it can do nothing but spare warnings."""

import os

import pytest

from specjax.cli import process


@pytest.mark.parametrize(
    ("environment", "libtpu", "devices", "plugins", "expected"),
    [
        ({}, True, [], [], "cpu"),
        ({}, False, [], [], None),
        ({}, True, ["/dev/accel0"], [], None),
        ({}, True, ["/dev/vfio/0"], [], None),
        ({}, True, [], ["xla_cuda12"], None),
        ({"JAX_PLATFORMS": "tpu"}, True, [], [], None),
        ({"JAX_PLATFORMS": ""}, True, [], [], None),
        ({"TPU_WORKER_ID": "0"}, True, [], [], None),
        ({"HOME": "/root"}, True, [], [], "cpu"),
    ],
)
def test_decision(environment, libtpu, devices, plugins, expected):
    assert process.platform_for_jax(environment, libtpu=libtpu, tpu_devices=devices, plugins=plugins) == expected


@pytest.mark.parametrize("installed", [True, False])
def test_chosen_platform_reaches_jax(installed, monkeypatch):
    monkeypatch.setattr(os, "environ", {"HF_HUB_DISABLE_PROGRESS_BARS": "0"})
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(process.Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(process, "jax_plugins", list)
    process.set_environment()
    assert os.environ.pop("HF_HUB_DISABLE_PROGRESS_BARS") == "0"  # set by the user: unchanged
    assert os.environ == ({"JAX_PLATFORMS": "cpu"} if installed else {})


def test_plugins_are_found_in_their_package(tmp_path, monkeypatch):
    (tmp_path / "jax_plugins" / "xla_toy").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "xla_toy" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert "xla_toy" in process.jax_plugins()


@pytest.mark.parametrize("terminal", [True, False])
def test_downloads_are_quiet_if_stderr_is_not_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(process.sys.stderr, "isatty", lambda: terminal, raising=False)
    process.set_environment()
    assert os.environ == ({} if terminal else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
