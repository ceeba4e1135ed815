"""What a user may choose of how examples are read."""

from dataclasses import dataclass

WITHIN_WORD = "within-word"
PLL = ("original", WITHIN_WORD)
"""Which pieces are hidden with the one that is asked for: none, or those that follow in the same word."""


@dataclass(frozen=True)
class Options:
    """How examples are read.

    Args:
        max_length: tokens after which a text (pair) is cut; None for none.
        seed: of the draw of words that are masked.
        every_word: mask each word by itself, in place of drawn ones together.
        pll: for pseudo-log-likelihoods, one of `PLL`.
        stride: for questions: tokens of the text that successive windows share.
        label_names: of the model's labels, in the order of their numbers.
        embeds: whether the model makes a vector of each text, so that those of a pair are read apart.
        prompts: what is put before first and second texts.
    """

    max_length: int | None = None
    seed: int = 0
    every_word: bool = False
    pll: str = "original"
    stride: int = 128
    label_names: tuple[str, ...] = ()
    embeds: bool = False
    prompts: tuple[str, str] = ("", "")
