"""Labelled attention maps as files."""

import numpy as np

COLUMNS = ("task", "example", "layer", "head", "first", "second", "label", "again")


def quantise(weights):
    """Weights as bytes."""
    return np.rint(255.0 * np.sqrt(weights)).astype(np.uint8)


def write_maps(path, map_set):
    """Both files of labelled maps."""
    np.savez(path.with_suffix(".npz"), maps=np.concatenate([one.ravel() for one in map_set.maps]))
    rows = [COLUMNS, *([str(getattr(row, name)) for name in COLUMNS] for row in map_set.rows)]
    path.with_suffix(".tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
