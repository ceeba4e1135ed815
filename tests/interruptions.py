"""Interrupted sweeps: steps so small that a sweep has many parts, and a progress bar at which Ctrl-C is pressed."""

TINY_PARTS = {"cpu": 1, "other": 1}


class StopAfter:
    """A progress bar at which the user presses Ctrl-C."""

    def __init__(self, share):
        self.share = share

    def __call__(self, done, total):
        if done > self.share * total:
            raise KeyboardInterrupt


COMMAND_OF_SMALL_PARTS = """
import sys
from bertjax.engine import sizes
sizes.STEPS_OF_PART, sizes.CACHED_FLOATS = {"cpu": 1, "other": 1}, 700
from bertjax.cli import main
sys.exit(main(sys.argv[1:]))
"""
