"""What several tests check of pictures."""


def assert_same_pictures(folder, several, name, alone):
    """A figure of a run in both modes is what a run in one mode draws, and other than the first of both."""
    assert list(several) == ["figure", name]
    for which, draw in (*several.items(), ("alone", alone)):
        draw(folder / f"{which}.png")
    pictures = [(folder / f"{which}.png").read_bytes() for which in ("figure", name, "alone")]
    assert pictures[0] != pictures[1] == pictures[2]
