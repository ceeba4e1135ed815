"""What layers and heads encode: probes of words."""

from bertjax.analyses.probing.probe import Probe
from bertjax.analyses.probing.structure import Structure
from bertjax.analyses.probing.words import random_encoder

__all__ = ["Probe", "Structure", "random_encoder"]
