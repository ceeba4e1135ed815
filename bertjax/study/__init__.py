"""The study: the main job from its settings to its results."""
