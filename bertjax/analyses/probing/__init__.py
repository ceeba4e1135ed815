"""What layers and heads encode: probes of words and spans, trees, geometry, likeness of layers, languages, senses."""

from bertjax.analyses.probing.edges import EdgeProbe
from bertjax.analyses.probing.geometry import Geometry
from bertjax.analyses.probing.languages import Languages
from bertjax.analyses.probing.likeness import CompareLayers
from bertjax.analyses.probing.probe import Probe
from bertjax.analyses.probing.senses import Senses
from bertjax.analyses.probing.structure import Structure
from bertjax.analyses.probing.words import random_encoder

__all__ = ["CompareLayers", "EdgeProbe", "Geometry", "Languages", "Probe", "Senses", "Structure", "random_encoder"]
