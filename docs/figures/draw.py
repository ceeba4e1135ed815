"""Draw the two figures of the explanation pages: `python docs/figures/draw.py` writes them beside this file."""

from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
INK, PALE, BASE, OWN = "#24323d", "#c9d2d8", "#24323d", "#d0642b"
TEXTS = ("#3a78a8", "#d0642b", "#5b9155", "#8a63a6", "#b58a2e", "#4aa0a0")
LAYERS, HEADS = 4, 3


def svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A picture on a white ground, which dark pages need."""
    font = "font-family='Helvetica,Arial,sans-serif' font-size='14'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' {font} role='img'>"
    ground = f"<rect width='{width:g}' height='{height:g}' rx='6' fill='#ffffff'/>"
    return "\n".join([head, f"<title>{title}</title>", ground, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: object, *, anchor: str = "start", fill: str = INK, bold: bool = False) -> str:
    """Words at a place; y is their middle."""
    weight = " font-weight='bold'" if bold else ""
    place = f"x='{x:g}' y='{y + 5:g}' text-anchor='{anchor}'"
    return f"<text {place} fill='{fill}'{weight}>{words}</text>"


def line(x: float, y: float, to_x: float, to_y: float, stroke: str = INK, width: float = 2.5) -> str:
    """A straight line."""
    return f"<line x1='{x:g}' y1='{y:g}' x2='{to_x:g}' y2='{to_y:g}' stroke='{stroke}' stroke-width='{width:g}'/>"


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    """A rectangle."""
    size = f"width='{width:g}' height='{height:g}'"
    return f"<rect x='{x:g}' y='{y:g}' {size} fill='{fill}' stroke='{stroke}'/>"


def draw_trie() -> str:
    """Runs as lines through layers: each leaves the base before the layer in which it differs."""
    left, top, wide, high = 40.0, 70.0, 130.0, 22.0
    starts = [layer for layer in reversed(range(LAYERS)) for _ in range(HEADS)]
    end, bottom = left + LAYERS * wide, top + (len(starts) + 1) * high
    parts = [text(left + (layer + 0.5) * wide, 24, f"layer {layer}", anchor="middle") for layer in range(LAYERS)]
    for layer in range(LAYERS + 1):
        parts.append(line(left + layer * wide, 40, left + layer * wide, bottom, PALE, 1))
    for layer in range(LAYERS):
        lanes = [row for row, start in enumerate(starts, 1) if start == layer]
        x = left + layer * wide
        parts.append(line(x + 10, top, x + 10, top + lanes[-1] * high, OWN))
        for head, lane in enumerate(lanes):
            y = top + lane * high
            parts.append(line(x + 10, y, end, y, OWN))
            parts.append(f"<circle cx='{x + 10:g}' cy='{y:g}' r='4' fill='{OWN}'/>")
            parts.append(text(end + 12, y, f"without {layer}.{head}", fill=OWN))
    parts += [line(left, top, end, top, BASE, 4), text(end + 12, top, "whole model", bold=True)]
    runs = [1 + HEADS * (layer + 1) for layer in range(LAYERS)]
    for layer, count in enumerate(runs):
        parts.append(text(left + (layer + 0.5) * wide, bottom + 18, f"{count} runs", anchor="middle"))
    total, naive = sum(runs), LAYERS * runs[-1]
    words = f"{' + '.join(map(str, runs))} = {total} layers are computed; a pass for each run has {naive}"
    parts.append(text(left, bottom + 48, words, bold=True))
    return svg(end + 150, bottom + 74, "The runs of a sweep as a trie", parts)


def first_fit(lengths: Iterable[int], slots: int) -> list[list[int]]:
    """The texts of each row: each text, the longest first, goes into the first row that has room."""
    rows: list[list[int]] = []
    sizes = list(lengths)
    for number, length in enumerate(sizes):
        free = (row for row in rows if sum(sizes[other] for other in row) + length <= slots)
        row = next(free, None)
        if row is None:
            rows.append([number])
        else:
            row.append(number)
    return rows


def draw_packing() -> str:
    """Texts padded, the same texts packed, and which tokens of a packed row see which."""
    lengths, slots, slot, high, top = (13, 10, 9, 7, 5, 2), 16, 13.0, 18.0, 50.0
    used, wide, step = sum(lengths), slots * slot, high + 8
    packed, parts, left = first_fit(lengths, slots), [], 20.0
    caption = top + len(lengths) * step + 12
    for title, rows in (("padded: a text in each row", [[n] for n in range(len(lengths))]), ("packed", packed)):
        parts.append(text(left, 24, title, bold=True))
        for number, row in enumerate(rows):
            x, y = left, top + number * step
            parts.append(box(x, y, wide, high, "#f1f3f5", PALE))
            for member in row:
                parts.append(box(x, y, lengths[member] * slot, high, TEXTS[member]))
                x += lengths[member] * slot
        parts.append(text(left, caption, f"{used} of {len(rows) * slots} slots hold a token"))
        left += wide + 40
    row, cell = packed[1], 9.5
    parts += [text(left, 24, "attention in the second row", bold=True)]
    parts.append(box(left, top, slots * cell, slots * cell, "#f1f3f5", PALE))
    start = 0.0
    for member in row:
        size = lengths[member] * cell
        parts.append(box(left + start, top + start, size, size, TEXTS[member]))
        start += size
    parts.append(text(left, caption, "query down, key across"))
    return svg(left + 250, caption + 24, "Texts padded and packed", parts)


if __name__ == "__main__":
    (HERE / "sweep-trie.svg").write_text(draw_trie())
    (HERE / "packing.svg").write_text(draw_packing())
