"""Verifiers: which path of a draft to accept, and what to append. Each says lossless or lossy in its first line."""

import enum
from typing import NamedTuple

from specjax.base import VerifyFn
from specjax.names import lookup
from specjax.trees import ROOT, Tree
from specjax.types import Siblings
from specjax.verify.block import block as block_verification
from specjax.verify.deterministic import deterministic as deterministic_tree
from specjax.verify.kseq import kseq as spectr_kseq
from specjax.verify.lossy import lossy_lenient as lossy_lenient
from specjax.verify.lossy import lossy_lenient_greedy as lossy_lenient_greedy
from specjax.verify.lossy import lossy_threshold as lossy_threshold
from specjax.verify.lossy import lossy_typical as lossy_typical
from specjax.verify.multiround import multiround as multiround_with_replacement
from specjax.verify.multiround import multiround_without as multiround_without_replacement
from specjax.verify.non_iterative import non_iterative as non_iterative_rejection
from specjax.verify.token import token_level as token_level
from specjax.verify.traversal import traversal as traversal_with_replacement
from specjax.verify.traversal import traversal_without as traversal_without_replacement

BARE = Tree((ROOT,))


class Serves(enum.Enum):
    """Which drafts a verifier is right for. A chain has no siblings: there only POINTS and laws are told apart."""

    CHAIN = "a chain"
    ANY = "any tree"
    WITH = "a chain, or a tree whose siblings are independent draws of one law, or point masses"
    WITH_LAWS = "a chain or tree that is drawn from laws, siblings independently"
    DRAWN = "a chain, or a tree whose siblings are drawn, with or without replacement, or point masses"
    POINTS = "point masses"

    def takes(self, tree: Tree, siblings: Siblings, dynamic: bool = False) -> bool:
        """Whether it serves a draft of this tree (dynamic: of trees of its size), with siblings that came about so."""
        if dynamic:
            return self in (Serves.ANY, Serves.POINTS) and siblings is Siblings.POINTS
        if tree.size == 1 or self in (Serves.ANY, Serves.DRAWN):  # of a bare root, every verifier draws from p
            return True
        if self is Serves.CHAIN:
            return tree.is_chain
        if self is Serves.POINTS:
            return siblings is Siblings.POINTS
        if self is Serves.WITH_LAWS and siblings is Siblings.POINTS:
            return False
        return tree.is_chain or siblings is not Siblings.WITHOUT_REPLACEMENT


class Verifier(NamedTuple):
    """A verifier under its name, with its guarantee and the drafts that it serves.

    A lossy one with other parameters: `TABLE["lossy-typical"]._replace(fn=lossy_typical(epsilon=0.05))`.
    """

    name: str
    fn: VerifyFn
    lossless: bool
    serves: Serves = Serves.ANY

    def check(self, tree: Tree, siblings: Siblings, drafter: str = "the drafter", *, dynamic: bool = False) -> None:
        """Refuses a drafter that this verifier is not right for.

        Raises:
          ValueError: names both, and the verifiers that serve.
        """
        if self.serves.takes(tree, siblings, dynamic):
            return
        shape = "a chain" if tree.is_chain else f"a tree of {tree.size} nodes"
        if dynamic:
            shape = f"trees of {tree.size} nodes, one a row,"
        raise ValueError(
            f"verifier {self.name!r} serves {self.serves.value}, and {drafter} drafts {shape} of {siblings.value}: "
            f"use one of {_lossless(tree, siblings, dynamic)}"
        )

    def require_lossless(self) -> None:
        """Raises ValueError where the verifier is lossy."""
        if not self.lossless:
            raise ValueError(
                f"verifier {self.name!r} is lossy, and a lossless run was asked for: use one of {_lossless()}"
            )


TABLE: dict[str, Verifier] = {
    found.name: found
    for found in (
        Verifier("token", token_level, True, Serves.CHAIN),
        Verifier("block", block_verification, True, Serves.CHAIN),
        Verifier("multiround", multiround_with_replacement, True, Serves.WITH),
        Verifier("multiround-without", multiround_without_replacement, True, Serves.DRAWN),
        Verifier("kseq", spectr_kseq, True, Serves.WITH_LAWS),
        Verifier("traversal", traversal_with_replacement, True, Serves.WITH),
        Verifier("traversal-without", traversal_without_replacement, True, Serves.DRAWN),
        Verifier("deterministic", deterministic_tree, True, Serves.POINTS),
        Verifier("non-iterative", non_iterative_rejection, True, Serves.WITH_LAWS),
        Verifier("lossy-typical", lossy_typical(), False, Serves.ANY),
        Verifier("lossy-lenient", lossy_lenient(), False, Serves.CHAIN),
        Verifier("lossy-lenient-greedy", lossy_lenient_greedy(), False, Serves.ANY),
        Verifier("lossy-threshold", lossy_threshold(), False, Serves.ANY),
    )
}


def _lossless(tree: Tree = BARE, siblings: Siblings = Siblings.POINTS, dynamic: bool = False) -> str:
    """Names of the lossless verifiers that serve such drafts."""
    return ", ".join(n for n, found in TABLE.items() if found.lossless and found.serves.takes(tree, siblings, dynamic))


def default(tree: Tree, siblings: Siblings, dynamic: bool = False) -> Verifier:
    """The lossless verifier that serves such drafts where none is named.

    Chains: token. Trees of point masses, dynamic ones among them: deterministic. Trees of draws: multiround-without
    where siblings were drawn without replacement, else multiround.
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
    """The verifier of that name.

    Raises:
      ValueError: there is none; the nearest name is suggested, and all are listed.
    """
    return lookup(name, TABLE, "verifier")
