"""Draw the pictures of the gallery by the code of docs/gallery.md: `python docs/figures/draw_gallery.py` (minutes)."""

import os
import re
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WIDTH, COLOURS = 1200, 64  # of the saved pictures, which keeps the repository small


def main() -> None:
    """Run the code of the page in an empty directory, and keep smaller copies of the pictures that it writes."""
    page = HERE.parent / "gallery.md"
    code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        exec(compile(code, str(page), "exec"), {"__name__": "gallery"})
        for path in sorted(Path(directory).glob("*.png")):
            picture = Image.open(path).convert("RGB")
            picture.thumbnail((WIDTH, 10 * WIDTH))
            picture.quantize(COLOURS).save(HERE / path.name, optimize=True)
        os.chdir(HERE)


if __name__ == "__main__":
    main()
