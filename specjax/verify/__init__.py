"""Verifiers: which path of a draft to accept, and which token to append. Docstrings begin with lossless or lossy."""

import enum
from typing import NamedTuple

from specjax.base import VerifyFn
from specjax.checks import lookup
from specjax.trees import ROOT, Tree
from specjax.types import Siblings
from specjax.verify.block import block as block_verification
from specjax.verify.coupled import coupled as coupled
from specjax.verify.deterministic import deterministic as deterministic_tree
from specjax.verify.kseq import kseq as spectr_kseq
from specjax.verify.lossy import lossy_lenient as lossy_lenient
from specjax.verify.lossy import lossy_lenient_greedy as lossy_lenient_greedy
from specjax.verify.lossy import lossy_threshold as lossy_threshold
from specjax.verify.lossy import lossy_typical as lossy_typical
from specjax.verify.multiround import multiround as multiround_with_replacement
from specjax.verify.multiround import multiround_without as multiround_without_replacement
from specjax.verify.non_iterative import non_iterative as non_iterative_rejection
from specjax.verify.simulation import simulated as simulated
from specjax.verify.token import token_level as token_level
from specjax.verify.traversal import traversal as traversal_with_replacement
from specjax.verify.traversal import traversal_without as traversal_without_replacement

BARE = Tree((ROOT,))


class DraftKind(enum.Enum):
    """Which drafts a verifier supports. Chains have no siblings: only point masses and samples differ there."""

    CHAIN = "chains"
    ANY = "any tree"
    WITH = "chains, and trees whose siblings are independent samples of one distribution or point masses"
    WITH_LOG_Q = "chains and trees of samples with log_q, siblings sampled independently"
    SAMPLED = "chains, and trees whose siblings are samples (with or without replacement) or point masses"
    POINTS = "point masses"


class Verifier(NamedTuple):
    """A named verifier with its guarantee and the drafts that it supports.

    A lossy verifier with other parameters: `TABLE["lossy-typical"]._replace(fn=lossy_typical(epsilon=0.05))`.

    Attributes:
      name: key in `TABLE`.
      fn: the verifier function.
      lossless: whether its output follows the target distribution exactly.
      drafts: the drafts that it supports.
    """

    name: str
    fn: VerifyFn
    lossless: bool
    drafts: DraftKind = DraftKind.ANY

    def supports(self, tree: Tree, siblings: Siblings, dynamic: bool = False) -> bool:
        """Whether the verifier supports drafts of this tree (if dynamic, of any tree of its size) and sibling kind."""
        if dynamic:
            return self.drafts in (DraftKind.ANY, DraftKind.POINTS) and siblings is Siblings.POINTS
        if tree.size == 1 or self.drafts in (DraftKind.ANY, DraftKind.SAMPLED):  # a bare root is plain decoding
            return True
        if self.drafts is DraftKind.CHAIN:
            return tree.is_chain
        if self.drafts is DraftKind.POINTS:
            return siblings is Siblings.POINTS
        if self.drafts is DraftKind.WITH_LOG_Q and siblings is Siblings.POINTS:
            return False
        return tree.is_chain or siblings is not Siblings.WITHOUT_REPLACEMENT

    def check(self, tree: Tree, siblings: Siblings, drafter: str = "the drafter", *, dynamic: bool = False) -> None:
        """Raises ValueError if the verifier does not support the drafter's drafts."""
        if self.supports(tree, siblings, dynamic):
            return
        shape = "a chain" if tree.is_chain else f"a {tree.size}-node tree"
        if dynamic:
            shape = f"a {tree.size}-node tree per row"
        raise ValueError(
            f"verifier {self.name!r} supports only {self.drafts.value}, but {drafter} proposes {shape} of "
            f"{siblings.value}: use one of {_lossless(tree, siblings, dynamic)}"
        )

    def require_lossless(self) -> None:
        """Raises ValueError if the verifier is lossy."""
        if not self.lossless:
            raise ValueError(f"verifier {self.name!r} is lossy, but lossless=True: use one of {_lossless()}")


TABLE: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (
        Verifier("token", token_level, True, DraftKind.CHAIN),
        Verifier("block", block_verification, True, DraftKind.CHAIN),
        Verifier("multiround", multiround_with_replacement, True, DraftKind.WITH),
        Verifier("multiround-without", multiround_without_replacement, True, DraftKind.SAMPLED),
        Verifier("kseq", spectr_kseq, True, DraftKind.WITH_LOG_Q),
        Verifier("traversal", traversal_with_replacement, True, DraftKind.WITH),
        Verifier("traversal-without", traversal_without_replacement, True, DraftKind.SAMPLED),
        Verifier("deterministic", deterministic_tree, True, DraftKind.POINTS),
        Verifier("coupled", coupled, True, DraftKind.ANY),
        Verifier("non-iterative", non_iterative_rejection, True, DraftKind.WITH_LOG_Q),
        Verifier("lossy-typical", lossy_typical(), False, DraftKind.ANY),
        Verifier("lossy-lenient", lossy_lenient(), False, DraftKind.CHAIN),
        Verifier("lossy-lenient-greedy", lossy_lenient_greedy(), False, DraftKind.ANY),
        Verifier("lossy-threshold", lossy_threshold(), False, DraftKind.ANY),
        Verifier("simulated", simulated(), False, DraftKind.ANY),
    )
}


def _lossless(tree: Tree = BARE, siblings: Siblings = Siblings.POINTS, dynamic: bool = False) -> str:
    """Names of the lossless verifiers that support such drafts."""
    return ", ".join(v.name for v in TABLE.values() if v.lossless and v.supports(tree, siblings, dynamic))


def default(tree: Tree, siblings: Siblings, dynamic: bool = False) -> Verifier:
    """The default verifier for a kind of draft, always lossless.

    Chains: token. Trees of point masses, including dynamic trees: deterministic. Trees of samples: multiround-without
    if siblings are sampled without replacement, else multiround.

    Args:
      tree: shape of the drafts.
      siblings: how the children of a node are chosen.
      dynamic: whether every row has its own tree.

    Returns:
      An entry of `TABLE`.

    >>> from specjax import trees, verify
    >>> from specjax.types import Siblings
    >>> verify.default(trees.chain(4), Siblings.WITH_REPLACEMENT).name
    'token'
    >>> verify.default(trees.regular((2, 2)), Siblings.POINTS).name
    'deterministic'
    """
    if tree.is_chain and not dynamic:
        return TABLE["token"]
    names = {
        Siblings.POINTS: "deterministic",
        Siblings.WITHOUT_REPLACEMENT: "multiround-without",
        Siblings.WITH_REPLACEMENT: "multiround",
    }
    return TABLE[names[siblings]]


def get(name: str) -> Verifier:
    """Looks up a verifier by name.

    Args:
      name: key of `TABLE`.

    Returns:
      The entry.

    Raises:
      ValueError: unknown name; the message suggests the closest name and lists all.

    >>> from specjax import verify
    >>> verify.get("block").lossless
    True
    """
    return lookup(name, TABLE, "verifier")
