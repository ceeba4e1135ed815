"""What layers and heads encode: probes of words, and language neutrality."""

from bertjax.analyses.probing.languages import Languages
from bertjax.analyses.probing.probe import Probe, random_encoder

__all__ = ["Languages", "Probe", "random_encoder"]
