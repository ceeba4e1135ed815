"""The explorer: a page in the browser that shows how a model's answer changes when heads are ablated.

`pip install 'bertjax[explore]'` installs what it needs.
"""

from bertjax.explorer.server import Explorer
from bertjax.explorer.subject import Subject, subject_of, subject_of_model

__all__ = ["Explorer", "Subject", "subject_of", "subject_of_model"]
