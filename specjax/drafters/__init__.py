"""Drafters: pure functions with explicit state, and constructors that join them to their weights.

Each constructor returns a `LoadedDrafter` for `specjax.generate(..., drafter=...)`. It is in the module of its
`base.Drafter`.
"""

from specjax.drafters import fitting as fitting
from specjax.drafters.bounded import bounded as bounded
from specjax.drafters.bridge import bridge as bridge
from specjax.drafters.bridge import reencode as reencode
from specjax.drafters.cascade import cascade as cascade
from specjax.drafters.chain import plain as plain
from specjax.drafters.corpus import Corpus as Corpus
from specjax.drafters.corpus import corpus as corpus
from specjax.drafters.corpus import load_corpus as load_corpus
from specjax.drafters.corpus import read_corpus as read_corpus
from specjax.drafters.corpus import save_corpus as save_corpus
from specjax.drafters.head import head as head
from specjax.drafters.loaded import LoadedDrafter as LoadedDrafter
from specjax.drafters.lookahead import lookahead as lookahead
from specjax.drafters.model import model as model
from specjax.drafters.ngram import ngram as ngram
from specjax.drafters.select import Retrieval as Retrieval
from specjax.drafters.select import Sinks as Sinks
from specjax.drafters.select import SnapKV as SnapKV
from specjax.drafters.self_speculation import layer_skip as layer_skip
from specjax.drafters.self_speculation import quantized as quantized
from specjax.drafters.small_kv import small_kv as small_kv
from specjax.drafters.suffix import suffix as suffix
from specjax.drafters.suffix import suffix_tree as suffix_tree
from specjax.drafters.table import table as table
from specjax.drafters.token_tree import dynamic_tree as dynamic_tree
from specjax.drafters.token_tree import tree as tree
from specjax.types import Siblings as Siblings
