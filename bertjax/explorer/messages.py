"""The requests of the page, checked by msgspec."""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from bertjax.errors import InputError

LONGEST_TEXT = 20_000  # characters
MOST_TEXTS, MOST_EXAMPLES, MOST_HEADS = 2, 100, 100_000
LARGEST = 10**9

Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Name = Annotated[str, Meta(max_length=200)]
Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Mode = Literal["uniform", "zero", "mean"]
M = TypeVar("M", bound=Struct)


class Target(Struct, forbid_unknown_fields=True):
    """The part of an answer that the map follows. The kind of the answer determines which fields are used.

    Args:
        mask: the index of the [MASK] among the masks of the text.
        word: the word at the mask, or the index of the word whose tag the map follows.
        label: the index of the class or label, `class` in JSON.
        tag: the name of the tag.
        start: the first character of a span of the context.
        end: the position after the last character of the span.
    """

    mask: Natural | None = None
    word: Natural | Name | None = None
    label: Natural | None = field(default=None, name="class")
    tag: Name | None = None
    start: Natural | None = None
    end: Natural | None = None


class ExamplesRequest(Struct, forbid_unknown_fields=True):
    """A request for examples of the task.

    Args:
        client: a random name of the page that sends the request.
        offset: the number of examples to skip.
        count: the largest number of examples to return.
        search: a part of a text; empty for all examples.
    """

    client: Name
    offset: Natural = 0
    count: Annotated[int, Meta(ge=0, le=MOST_EXAMPLES)] = 20
    search: Text = ""


class Question(Struct, forbid_unknown_fields=True):
    """A request for an answer: texts, and the heads that are ablated together.

    Args:
        texts: one text, or two.
        client: a random name of the page that sends the request; a newer request replaces an older one of this page.
        mode: the mode of ablation.
        off: the names of the ablated heads, such as '4.2'.
    """

    texts: Annotated[list[Text], Meta(min_length=1, max_length=MOST_TEXTS)]
    client: Name = ""
    mode: Mode = "uniform"
    off: Annotated[list[Name], Meta(max_length=MOST_HEADS)] = []


class MapRequest(Question, forbid_unknown_fields=True):
    """A request for a map, or for Python code that computes it.

    Args:
        target: the part of the answer that the map follows.
    """

    target: Target = field(default_factory=Target)


class AttentionRequest(Question, forbid_unknown_fields=True):
    """A request for attention.

    Args:
        weights: 'attention' for attention weights, or 'norms' for the share of each key in the norms of a head's
            weighted values.
    """

    weights: Literal["attention", "norms"] = "attention"


def read_message(body: bytes, kind: type[M]) -> M:
    """Read a request. Raises `InputError` if the JSON is malformed, or does not have the fields of the request."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request cannot be read: {error}") from error
