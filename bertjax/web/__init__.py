"""Self-contained HTML pages, and the JavaScript modules that they share; no JAX.

`assets/shared/` holds the components; `assets/report/`, `assets/notebook/` and `assets/explorer/` hold the pages.
"""

from bertjax.web.attention import pack_attention
from bertjax.web.bundle import make_page, security_policy
from bertjax.web.notebook import AttentionView, make_view

__all__ = ["AttentionView", "make_page", "make_view", "pack_attention", "security_policy"]
