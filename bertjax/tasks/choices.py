"""Multiple choice: each answer is read behind its question as a pair of its own, and the highest score is chosen."""

from bertjax.data import Choices, Examples, Tokenizer
from bertjax.tasks.encoded import Encoded, encode_texts
from bertjax.tasks.options import Options


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """What stands before the choices, with each of them; a question goes to its answer where there is a context too."""
    choices = [content.texts for content in examples.content or () if isinstance(content, Choices)]
    questions = examples.second or ("",) * len(examples)
    count = len(choices[0])
    first = [*examples.first] * count
    second = [
        f"{question} {texts[number]}".strip()
        for number in range(count)
        for question, texts in zip(questions, choices, strict=True)
    ]
    encodings = encode_texts(tokenizer, first, second, len(examples), options)
    return Encoded("choices", encodings, tokenizer.pad_id, len(examples), copies=count)
