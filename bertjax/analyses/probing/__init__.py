"""What layers and heads encode: probes of words, and language neutrality."""

from bertjax.analyses.probing.languages import Languages
from bertjax.analyses.probing.probe import Probe
from bertjax.analyses.probing.structure import Structure
from bertjax.analyses.probing.words import random_encoder

__all__ = ["Languages", "Probe", "Structure", "random_encoder"]
