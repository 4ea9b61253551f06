"""Trees of draft nodes: static trees, optimal trees for measured acceptance, and (`trees.dynamic`) one tree per row.

static.py defines trees, search.py finds the best tree of a size, dynamic.py selects nodes while drafting. Only
dynamic.py imports jax.
"""

from specjax.trees.search import TreeChoice as TreeChoice
from specjax.trees.search import best_tree as best_tree
from specjax.trees.search import expected_length as expected_length
from specjax.trees.search import fastest as fastest
from specjax.trees.search import node_values as node_values
from specjax.trees.search import sequoia as sequoia
from specjax.trees.static import NO_CHILD as NO_CHILD
from specjax.trees.static import ROOT as ROOT
from specjax.trees.static import SCRATCH as SCRATCH
from specjax.trees.static import Tree as Tree
from specjax.trees.static import chain as chain
from specjax.trees.static import from_paths as from_paths
from specjax.trees.static import regular as regular
