"""Reading and writing checkpoints: safetensors, Flax msgpack, PyTorch and GGUF in; safetensors out."""

from specjax.convert.assemble import load_params as load_params
from specjax.convert.locate import Checkpoint as Checkpoint
from specjax.convert.locate import local_folder as local_folder
from specjax.convert.locate import locate as locate
from specjax.convert.save import SHARD_BYTES as SHARD_BYTES
from specjax.convert.save import pending as pending
from specjax.convert.save import save_pretrained as save_pretrained
from specjax.convert.shards import HEAD_FORMATS as HEAD_FORMATS
from specjax.convert.shards import open_source as open_source
from specjax.convert.sources import TensorSource as TensorSource
