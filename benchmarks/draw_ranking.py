"""Make a collection for `--task ranking` of questions in SQuAD's form, such as XQuAD's.

Command: python -m benchmarks.draw_ranking xquad.en.json.gz DIRECTORY
The queries are the questions, the corpus the sentences of all contexts; relevant is the sentence in which a question's
first answer begins. Prints how many there are: 1,190 queries and 1,204 sentences of XQuAD in English.
"""

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")  # white space between two sentences


def sentences_of(context: str) -> list[tuple[int, int]]:
    """First and last character of each sentence, the white space behind it with it.

    >>> sentences_of("It rains. No one is out.")
    [(0, 10), (10, 24)]
    """
    ends = [match.end() for match in END.finditer(context)] + [len(context)]
    return list(zip([0, *ends], ends, strict=False))


def contexts(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each paragraph with its name."""
    for number, article in enumerate(content["data"]):
        for place, paragraph in enumerate(article["paragraphs"]):
            yield f"{number}-{place}", paragraph


def collect(content: dict[str, Any]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Sentences by name, questions by id, and for each question the name of the sentence with its answer."""
    corpus, queries, relevant = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, paragraph in contexts(content):
        spans = sentences_of(paragraph["context"])
        corpus |= {
            f"{name}-{number}": paragraph["context"][start:end].strip() for number, (start, end) in enumerate(spans)
        }
        for question in paragraph["qas"]:
            begin = question["answers"][0]["answer_start"]
            number = next(number for number, (start, end) in enumerate(spans) if start <= begin < end)
            queries[question["id"]], relevant[question["id"]] = question["question"], f"{name}-{number}"
    return corpus, queries, relevant


def main() -> None:
    """Read, write and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("input", type=Path, help="a file in SQuAD's form, also .gz")
    parser.add_argument("output", type=Path, help="the directory to write")
    arguments = parser.parse_args()
    opened = gzip.open if arguments.input.suffix == ".gz" else open
    with opened(arguments.input, "rt", encoding="utf-8") as file:
        corpus, queries, relevant = collect(json.load(file))
    (arguments.output / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": text}, ensure_ascii=False) for key, text in texts.items()]
        (arguments.output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    judged = "".join(f"{query}\t{sentence}\t1\n" for query, sentence in relevant.items())
    (arguments.output / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    print(f"{len(queries):,} queries, {len(corpus):,} sentences")


if __name__ == "__main__":
    main()
