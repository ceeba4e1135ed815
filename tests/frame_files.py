"""Files of frame semantics: a small FrameNet, and PropBank's columns of CoNLL-U."""

from xml.sax.saxutils import escape

from experiments.frames.sources import split_words

SPACE = 'xmlns="http://framenet.icsi.berkeley.edu"'

CORE = ("Agent", "Goal")  # of the frame's core sets; Theme is core without a set, Time is not core


def span_of(text, words):
    start = text.index(words)
    return start, start + len(words)


def write_framenet(directory, sentences):
    """A FrameNet of one frame and two units: sentences as (text, target spans, [(element, start, end)])."""
    for folder in ("frame", "lu", "fulltext"):
        (directory / folder).mkdir(parents=True)
    unit = 'ID="{0}" name="go.v" frameID="7" frameName="Going" status="Finished_Initial"'
    elements = "".join(
        f'<FE coreType="{kind}" abbrev="{name}" name="{name}" ID="{number}"><definition/></FE>'
        for number, (name, kind) in enumerate(
            [("Agent", "Core"), ("Goal", "Core"), ("Theme", "Core"), ("Time", "Peripheral")], 1
        )
    )
    members = "".join(f'<memberFE name="{name}" ID="{number}"/>' for number, name in enumerate(CORE, 1))
    units = "".join(
        f'<lexUnit {unit.format(number)} POS="V" lemmaID="1"><definition/><sentenceCount annotated="1" total="1"/>'
        '<lexeme POS="V" name="go" order="1" headword="false" breakBefore="false"/></lexUnit>'
        for number in (1, 2)
    )
    index = "".join(f"<lu {unit.format(number)}/>" for number in (1, 2))
    files = {
        "frRelation.xml": f"<frameRelations {SPACE}></frameRelations>",
        "semTypes.xml": f"<semTypes {SPACE}></semTypes>",
        "fulltextIndex.xml": f"<fulltextIndex {SPACE}></fulltextIndex>",
        "frameIndex.xml": f'<frameIndex {SPACE}><frame ID="7" name="Going"/></frameIndex>',
        "luIndex.xml": f"<luIndex {SPACE}>{index}</luIndex>",
        "frame/Going.xml": f'<frame {SPACE} name="Going" ID="7"><definition/>{elements}'
        f"<FEcoreSet>{members}</FEcoreSet>{units}</frame>",
    }
    for number in (1, 2):
        annotated = "".join(_sentence(place, *sentence) for place, sentence in enumerate(sentences[number - 1 :: 2], 1))
        files[f"lu/lu{number}.xml"] = (
            f'<lexUnit {SPACE} {unit.format(number)} POS="V"><header/><definition/>'
            f'<lexeme POS="V" name="go"/><subCorpus name="all">{annotated}</subCorpus></lexUnit>'
        )
    for name, text in files.items():
        (directory / name).write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n', encoding="utf-8")
        (directory / name).chmod(0o644)
    directory.chmod(0o755)
    return directory


def _sentence(number, text, targets, elements, tagged=False):
    targets = "".join(f'<label name="Target" start="{start}" end="{end - 1}"/>' for start, end in targets)
    labels = "".join(f'<label name="{name}" start="{start}" end="{end - 1}"/>' for name, start, end in elements)
    words = enumerate(split_words(text) if tagged else ())
    tags = "".join(
        f'<label name="{"PNP" if place == 0 else "NN1"}" start="{start}" end="{end - 1}"/>'
        for place, (start, end) in words
    )
    return (
        f'<sentence ID="{number}" sentNo="0" aPos="0"><text>{escape(text)}</text>'
        f'<annotationSet ID="{number}1" status="UNANN"><layer rank="1" name="BNC">{tags}</layer></annotationSet>'
        f'<annotationSet ID="{number}2" status="MANUAL"><layer rank="1" name="Target">{targets}</layer>'
        f'<layer rank="1" name="FE">{labels}<label name="Theme" itype="DNI"/></layer></annotationSet></sentence>'
    )


# Invented, in the layout of Universal Propositions: roleset, then a column for each predicate.
PROPOSITIONS = """# text = The old dog, he says, didn't run home.
1	The	the	DET	DT	_	3	det	_	_	_	_	_
2	old	old	ADJ	JJ	_	3	amod	_	_	_	_	_
3	dog	dog	NOUN	NN	_	10	nsubj	_	SpaceAfter=No	_	_	ARG0
4	,	,	PUNCT	,	_	3	punct	_	_	_	_	_
5	he	he	PRON	PRP	_	6	nsubj	_	_	_	A0	_
6	says	say	VERB	VBZ	_	10	parataxis	_	SpaceAfter=No	say.01	V	_
7	,	,	PUNCT	,	_	6	punct	_	_	_	_	_
8-9	didn't	_	_	_	_	_	_	_	_
8	did	do	AUX	VBD	_	10	aux	_	_	_	_	_
9	n't	not	PART	RB	_	10	advmod	_	_	_	_	ARGM-NEG
9.1	ever	_	_	_	_	_	_	_	_	_	_	_
10	run	run	VERB	VB	_	0	root	_	_	run.01	ARG1	V
11	home	home	NOUN	NN	_	10	obl	_	SpaceAfter=No	_	_	AM-DIR
12	.	.	PUNCT	.	_	10	punct	_	_	_	_	_

# text = The men she likes left.
1	The	the	DET	DT	_	2	det	_	_	_	_	_
2	men	man	NOUN	NNS	_	5	nsubj	_	_	_	ARG1	ARG0
3	she	she	PRON	PRP	_	4	nsubj	_	_	_	ARG0	_
4	likes	like	VERB	VBZ	_	2	acl:relcl	_	_	like.01	V	_
5	left	leave	VERB	VBD	_	0	root	_	SpaceAfter=No	leave.01	_	V
6	.	.	PUNCT	.	_	5	punct	_	_	_	_	_

"""
