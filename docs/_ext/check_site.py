"""Whether a built site holds together: `python docs/_ext/check_site.py build/docs`.

Every link within it leads to a file and a place that are there, and nothing that a page loads (scripts, styles,
pictures, fonts) comes from the network. Prints what is wrong; exit code 1 if anything is.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}
FROM_NETWORK = re.compile(r"""(?:url\(|@import\s+)["']?(?:https?:)?//""")


class Page(HTMLParser):
    """The places of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's id, link and source."""
        given = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in LOADED and given.get(LOADED[tag]):
            self.loads.append(str(given[LOADED[tag]]))


def problems(site: Path) -> list[str]:
    """What is wrong with a site, a line for each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.glob("**/*.html"))}
    wrong = []
    for path, page in pages.items():
        for target in {*page.links, *page.loads}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads and parts.scheme != "data":
                    wrong.append(f"{path.relative_to(site)}: loads {target}")
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not place.is_file():
                wrong.append(f"{path.relative_to(site)}: no file {target}")
            elif anchor and place in pages and anchor not in pages[place].places:
                wrong.append(f"{path.relative_to(site)}: no place {target}")
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
    print(f"{pages} pages, {len(found)} links or files that are wrong")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
