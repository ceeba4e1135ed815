"""Settings of jobs from the options of a study and of an analysis together."""

from dataclasses import replace

from bertjax.analyses import Ablate
from bertjax.jobs import Settings, names


def settings_of(analysis=Ablate, **options):
    """The settings of an analysis."""
    of_analysis = {name: options.pop(name) for name in [*options] if name in names(analysis)}
    return Settings(**options, analysis=analysis(**of_analysis))


def changed(settings, **options):
    """Settings with other values of some options."""
    known = names(type(settings.analysis))
    analysis = replace(settings.analysis, **{name: value for name, value in options.items() if name in known})
    return replace(settings, analysis=analysis, **{n: value for n, value in options.items() if n not in known})


def options_of(settings):
    """The options of the command line for model, data and output of settings of MRPC."""
    sources = ["--model", settings.model, "--task", "mrpc", "--data", settings.data]
    return [*sources, "--output", settings.analysis.output]
