"""Trees from attention: the maximum spanning tree of a head's weights between words (Htut et al. 2019)."""

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

ROOT = -1


def spanning_edges(weights: Float[np.ndarray, "word other"]) -> list[tuple[int, int]]:
    """The edges of the undirected tree over all words with the largest sum of weights, both directions together.

    >>> spanning_edges(np.array([[0, 0.9, 0.1], [0.2, 0, 0.5], [0.0, 0.3, 0]]))
    [(0, 1), (1, 2)]
    """
    both = weights + weights.T
    costs = both.max() + 1.0 - both  # all above 0: for scipy an edge of 0 is none
    np.fill_diagonal(costs, 0.0)
    tree = minimum_spanning_tree(costs).tocoo()
    pairs = np.sort(np.stack([tree.row, tree.col], axis=1), axis=1).tolist()
    return sorted((first, second) for first, second in pairs)


def rooted(edges: list[tuple[int, int]], root: int, words: int) -> Int[np.ndarray, " word"]:
    """The head of each word where a tree hangs from its root, whose head is -1.

    >>> rooted([(0, 1), (1, 2)], 1, 3).tolist()
    [1, -1, 1]
    """
    first, second = np.array(edges, int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (first, second)), (words, words))
    return np.maximum(breadth_first_order(graph, root, directed=False)[1], ROOT)


def chain(words: int) -> list[tuple[int, int]]:
    """Each word joined with the next."""
    return [(word, word + 1) for word in range(words - 1)]


def tree_hits(edges: list[tuple[int, int]], heads: Int[np.ndarray, " word"], counted: np.ndarray) -> tuple[int, int]:
    """How many counted words have their edge to their true head in a tree, and how many the head itself, once rooted.

    Args:
        heads: the true ones; -1 of the root.
        counted: which words count: not the root, and not what is left out.
    """
    root = int(np.flatnonzero(heads == ROOT)[0])
    found, directed = {*edges}, rooted(edges, root, len(heads))
    undirected = sum((min(word, heads[word]), max(word, heads[word])) in found for word in np.flatnonzero(counted))
    return int(undirected), int((directed == heads)[counted].sum())
