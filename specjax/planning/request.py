"""What is planned: models by name, a slice, and the sizes of a request."""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from specjax import checks, programs
from specjax.models import families
from specjax.models.family import MODEL, WIDE, Family
from specjax.models.format import Format, default_format
from specjax.models.shapes import published_shapes
from specjax.planning.chips import Slice, slice_named
from specjax.sharding import DATA


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """A request whose needs are planned; hashable, and the key under which compiled results are kept.

    Attributes:
      target, draft: published models by name, or folders with a config.json. No draft: plain decoding.
      topology: of one slice; see `chips.slice_named`.
      slices: number of slices.
      mesh: sizes of (data, model) or (data, model, wide).
      rows: prompts that are decoded together.
      prompt_tokens, max_new_tokens: of each row.
      gamma: draft tokens per round.
      dtype: of the weights in products. weights: "int8" stores those of the target so. cache_dtype: of keys and values.
      compiler_layouts: the loop reads and returns its arrays as the compiler prefers, see `lowering.lower_in_layouts`;
        False: in default layouts, as `specjax.generate` runs it.
    """

    target: str
    draft: str | None
    topology: str
    slices: int = 1
    mesh: tuple[int, ...] = (1, 1)
    rows: int = 8
    prompt_tokens: int = 1024
    max_new_tokens: int = 1024
    gamma: int = 4
    dtype: str = "bfloat16"
    weights: str | None = None
    cache_dtype: str | None = None
    compiler_layouts: bool = False

    def __post_init__(self) -> None:
        checks.at_least(
            1, slices=self.slices, rows=self.rows, prompt_tokens=self.prompt_tokens,
            max_new_tokens=self.max_new_tokens,
        )  # fmt: skip
        if self.draft is not None:
            checks.at_least(1, gamma=self.gamma)
        _ = self.place

    @property
    def place(self) -> Slice:
        return slice_named(self.topology)

    @property
    def devices(self) -> int:
        return self.place.chips * self.slices

    @property
    def fmt(self) -> Format:
        """Of the target."""
        return default_format(
            self.dtype, weights=self.weights, cache_dtype=self.cache_dtype, platform="tpu", sharded=True
        )

    @property
    def draft_fmt(self) -> Format:
        return default_format(self.dtype, platform="tpu", sharded=True)

    @property
    def block(self) -> int:
        """Nodes of a target pass."""
        return 1 if self.draft is None else self.gamma + 1

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the mesh by name."""
        return dict(zip((DATA, MODEL, WIDE), (*self.mesh, 1)[:3], strict=True))

    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        names = (DATA, MODEL, WIDE)[: len(self.mesh)]
        return AbstractMesh(self.mesh, names, axis_types=(AxisType.Auto,) * len(names))

    def cache_len(self) -> int:
        """Slots for committed tokens, as requests allocate them.

        Raises:
          ValueError: more tokens than the target has positions.
        """
        family, config = shape_named(self.target)
        used = 1 if family.model.encoder_decoder else self.prompt_tokens
        need = used + self.max_new_tokens - 1
        if config.positions is not None and need > config.positions:
            raise ValueError(
                f"{self.prompt_tokens} prompt tokens and {self.max_new_tokens} new ones need {need} positions, and "
                f"{self.target} has {config.positions}: plan fewer tokens"
            )
        return programs.cache_bucket(need, config.positions)

    def prompt_width(self) -> int:
        """Width of the array of prompts."""
        family, _ = shape_named(self.target)
        return programs.prompt_bucket(self.prompt_tokens) if family.model.encoder_decoder else self.cache_len()


@functools.cache
def shape_named(name: str) -> tuple[Family, Any]:
    """Family and configuration of a model: a published shape by its name or Hugging Face id, else a config.json.

    >>> shape_named("facebook/opt-66b")[1].heads, shape_named("meta-llama/Meta-Llama-3-70B-Instruct")[1].kv_heads
    (72, 8)

    Raises:
      ValueError: no published shape, and no config.json in a folder of that name.
    """
    shapes = published_shapes()
    short = name.rstrip("/").split("/")[-1].lower()
    short = re.sub(r"^meta-|[-_](hf|instruct|chat|it)(?=$|-)", "", short)
    if short in shapes:
        return shapes[short]
    for folder in (Path(name), Path(__file__).parents[1] / name):  # bundled/NAME is in the package
        if (folder / "config.json").is_file():
            published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            family = families.family_of(published)
            return family, family.from_published(published)
    near = checks.hint(short, shapes)
    raise ValueError(f"unknown model {name!r}{near}: name a published shape, or a folder with a config.json")
