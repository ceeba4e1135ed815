"""Pages of bertjax as self-contained HTML, and the JavaScript modules that they share; no JAX.

`assets/shared/` has the components, `assets/report/`, `assets/notebook/` and `assets/explorer/` the pages.
"""

from bertjax.web.attention import pack_attention
from bertjax.web.bundle import make_page, security_policy
from bertjax.web.notebook import AttentionView, make_view

__all__ = ["AttentionView", "make_page", "make_view", "pack_attention", "security_policy"]
