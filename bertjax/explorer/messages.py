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
    """The part of an answer whose change the map shows; which fields it has depends on the kind of the answer.

    Args:
        mask: index of the [MASK], among those of the text.
        word: the word at the mask; or the index of a word, for its tag.
        label: index of the class or label, `class` in JSON.
        tag: name of the tag.
        start, end: characters of a span of the context.
    """

    mask: Natural | None = None
    word: Natural | Name | None = None
    label: Natural | None = field(default=None, name="class")
    tag: Name | None = None
    start: Natural | None = None
    end: Natural | None = None


class ExamplesRequest(Struct, forbid_unknown_fields=True):
    """Some examples of the task.

    Args:
        client: random name of the page that sends the request.
        offset, count: which of the examples that are found.
        search: a part of a text; empty for all examples.
    """

    client: Name
    offset: Natural = 0
    count: Annotated[int, Meta(ge=0, le=MOST_EXAMPLES)] = 20
    search: Text = ""


class Question(Struct, forbid_unknown_fields=True):
    """Texts and the heads that are ablated together.

    Args:
        texts: one, or two.
        client: as in `ExamplesRequest`; a newer request replaces an older one of the same page.
        mode: how heads are ablated.
        off: heads such as '4.2'.
    """

    texts: Annotated[list[Text], Meta(min_length=1, max_length=MOST_TEXTS)]
    client: Name = ""
    mode: Mode = "uniform"
    off: Annotated[list[Name], Meta(max_length=MOST_HEADS)] = []


class MapRequest(Question, forbid_unknown_fields=True):
    """A map, or lines of Python for it."""

    target: Target = field(default_factory=Target)


class AttentionRequest(Question, forbid_unknown_fields=True):
    """Attention weights, or the shares of each key in the norms of weighted values."""

    weights: Literal["attention", "norms"] = "attention"


def read_message(body: bytes, kind: type[M]) -> M:
    """Read a request. Raises `InputError` for JSON that is malformed, or that does not fit."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request cannot be read: {error}") from error
