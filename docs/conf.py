"""How the documentation is built: `make docs`. Nothing that it makes asks for anything on the network."""

import sys
from pathlib import Path

import bertjax

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "bertjax"
author = "the authors of bertjax"
copyright = "the authors of bertjax; Apache licence 2.0"
version = release = bertjax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "bertjax_pages",
    "docstrings",
]
exclude_patterns = ["_ext"]
default_role = "py:obj"  # docstrings quote code in single backticks; what is a public name becomes a link
nitpicky = False

# Markdown as GitHub reads it; formulas are plain text, so no page needs MathJax.
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []

# Notebooks are shown with the outputs that they were saved with; the tests execute them.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes such as "*batch token" are no reStructuredText; signatures have them
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"bertjax {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which browsers refuse from disk
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"

copybutton_selector = "div.highlight-python pre, div.highlight-console pre, div.highlight-ipython3 pre"
