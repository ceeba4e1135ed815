"""Check a built site: `python docs/_ext/check_site.py build/docs`.

Every internal link must lead to an existing file and anchor, and pages must not load anything (scripts, styles,
pictures, fonts) from the network. Prints the problems; exit code 1 if there are any.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}
FROM_NETWORK = re.compile(r"""(?:url\(|@import\s+)["']?(?:https?:)?//""")


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the id, link and source of an element."""
        attributes = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := attributes.get(name))}
        if tag == "a" and attributes.get("href"):
            self.links.append(str(attributes["href"]))
        if tag in LOADED and attributes.get(LOADED[tag]):
            self.loads.append(str(attributes[LOADED[tag]]))


def problems(site: Path) -> list[str]:
    """The problems of a site, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.glob("**/*.html"))}
    wrong = []
    for path, page in pages.items():
        for target in {*page.links, *page.loads}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads and parts.scheme != "data":
                    wrong.append(f"{path.relative_to(site)}: loads {target}")
                continue
            target_path = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target_path.is_file():
                wrong.append(f"{path.relative_to(site)}: no file {target}")
            elif anchor and target_path in pages and anchor not in pages[target_path].anchors:
                wrong.append(f"{path.relative_to(site)}: no anchor {target}")
    for style in site.glob("**/*.css"):
        if FROM_NETWORK.search(style.read_text(encoding="utf-8")):
            wrong.append(f"{style.relative_to(site)}: loads from the network")
    return wrong


def main(arguments: list[str]) -> int:
    """Check the site in a directory."""
    site = Path(arguments[0]).resolve()
    pages = len(list(site.glob("**/*.html")))
    found = problems(site)
    for line in found:
        print(line)
    print(f"{pages} pages, {len(found)} problems")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
