"""One file from modules: order, names, what is refused, the policy, and texts that could end an element."""

import base64
import hashlib
import json
import re

import pytest

from bertjax.web import make_page, security_policy
from tests.layering import ROOT

EVIL = "</script><script>window.hacked = true</script><!-- \u2028 & '\""
PAGES = sorted(
    path.relative_to(ROOT / "bertjax/web/assets").with_suffix("").as_posix()
    for path in (ROOT / "bertjax/web/assets").glob("*/*.html")
)


@pytest.fixture
def folder(tmp_path):
    """A small folder of modules: an entry module with its body and style, and two that it imports."""
    write(tmp_path, "shared/theme.css", "body { margin: 0; }\n")
    write(tmp_path, "shared/last.js", "export const last = 1;\n")
    middle = 'import { last } from "./last.js";\n\nexport function middle() { return last; }\n'
    write(tmp_path, "shared/middle.js", middle)
    write(tmp_path, "shared/middle.css", ".middle { color: red; }\n")
    imports = 'import { middle } from "../shared/middle.js";\nimport { last } from "../shared/last.js";\n'
    write(tmp_path, "page/main.js", f"{imports}\nwindow.found = middle() + last;\n")
    write(tmp_path, "page/main.html", "<main></main>\n")
    write(tmp_path, "page/main.css", "main { padding: 0; }\n")
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def content(page, tag):
    """What is in the last element of a tag."""
    return re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)[-1]


def test_modules_come_after_their_imports_and_each_once(folder):
    page = make_page("page/main", None, assets=folder)
    script = content(page, "script")
    assert script == (
        '"use strict";\n(() => {\nconst last = 1;\n\nfunction middle() { return last; }\n'
        "\nwindow.found = middle() + last;\n})();\n"
    )
    style = "body { margin: 0; }\n.middle { color: red; }\nmain { padding: 0; }\n"
    assert content(page, "style") == style
    assert "<main></main>" in page


def test_the_policy_allows_only_this_script_and_style(folder):
    page = make_page("page/main", None, assets=folder)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(content(page, tag).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "connect-src" not in policy


def test_the_page_of_a_server_has_a_nonce_and_may_connect(folder):
    page = make_page("page/main", None, nonce="abc", assets=folder)
    assert '<script nonce="abc">' in page
    assert '<style nonce="abc">' in page
    for policy in (page, security_policy("abc")):
        assert "script-src 'nonce-abc'" in policy
        assert "connect-src 'self'" in policy
    assert security_policy("abc").endswith("frame-ancestors 'none'")


def test_data_cannot_leave_their_element(folder):
    data = {"text": EVIL, "number": float("nan")}
    page = make_page("page/main", data, title=EVIL, assets=folder)
    written = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert "<" not in written
    assert json.loads(written) == {"text": EVIL, "number": None}
    assert page.count("<script") == page.count("</script") == 2
    assert "window.hacked = true</script>" not in page


def test_extra_texts_have_elements_of_their_own(folder):
    page = make_page("page/main", None, extra={"packed": "H4sI"}, assets=folder)
    assert '<script type="text/plain" id="packed">H4sI</script>' in page
    with pytest.raises(ValueError, match="packed has '</script', which ends an element"):
        make_page("page/main", None, extra={"packed": EVIL}, assets=folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shared/last.js", "export const last = 1;\nfunction middle() {}\n", "both declare middle"),
        ("shared/last.js", "export const last = 1;\nclass middle {}\n", "both declare middle"),
        ("shared/last.js", "const last = 1;\n", "shared/middle.js: shared/last.js does not export last"),
        ("shared/last.js", 'import { middle } from "./middle.js";\nexport const last = 1;\n', "circle"),
        ("shared/last.js", "export default 1;\nexport const last = 2;\n", "cannot read 'export default 1;'"),
        ("shared/last.js", "export const last = 1;\nexport { last };\n", "cannot read 'export { last };'"),
        ("shared/last.js", "export const last = 1;\nconst { a } = {};\n", "cannot read 'const { a } = {};'"),
        ("shared/last.js", 'import * as a from "./b.js";\nexport const last = 1;\n', "cannot read 'import"),
        ("shared/last.js", 'import { a } from "https://a.org/b.js";\nexport const last = 1;\n', "cannot read 'import"),
        ("page/main.js", 'import { last as l } from "../shared/last.js";\n', "cannot read the import 'last as l'"),
        ("page/main.js", 'const a = "</script>";\n', "ends an element"),
        ("page/main.css", "/* </style> */\n", "ends an element"),
    ],
)
def test_modules_outside_the_subset_are_refused(folder, name, text, message):
    write(folder, name, text)
    with pytest.raises(ValueError, match=re.escape(message) if "export" in message else message):
        make_page("page/main", None, assets=folder)


def test_imports_may_have_several_lines(folder):
    write(folder, "page/main.js", 'import {\n  last,\n} from "../shared/last.js";\nwindow.found = last;\n')
    assert "import" not in content(make_page("page/main", None, assets=folder), "script")


@pytest.mark.parametrize("entry", PAGES)
def test_the_pages_of_bertjax_keep_to_the_subset(entry):
    page = make_page(entry, {})
    assert len(page) < 300_000
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)


def test_all_pages_were_found():
    assert "notebook/page" in PAGES


FILES = sorted((ROOT / "bertjax/web/assets").glob("*/*.js"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_modules_are_short_and_write_no_html(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    assert max(map(len, text.splitlines())) <= 130
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|new Function)\b", text)
