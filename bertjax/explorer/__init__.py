"""The explorer: a page in the browser that shows what each head does to a model's answer. Needs the extra `explore`."""

from bertjax.explorer.server import Explorer
from bertjax.explorer.subject import Subject, subject_of, subject_of_model

__all__ = ["Explorer", "Subject", "subject_of", "subject_of_model"]
