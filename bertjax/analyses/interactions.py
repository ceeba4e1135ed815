"""Interactions: for each pair of heads the effect of ablating both minus the sum of the effects of ablating each.

The sweep runs all pairs and each of their heads. What each example contributes to an interaction is kept, so that
intervals, tests and corrections over all pairs are those of any other result.
"""

from dataclasses import dataclass, replace

from bertjax.analyses.ablate import introduce
from bertjax.analyses.contributions import (
    contributions_of,
    describe_score,
    outcome_of_examples,
    say_cost_of_contributions,
)
from bertjax.attribution import interaction_metrics, pair_interactions, with_singles
from bertjax.interventions import head_pairs, list_heads
from bertjax.jobs import Context, Heads, Job, Means, Mode, Outcome, Sweep, option
from bertjax.tasks import TaskResult


@dataclass(frozen=True, kw_only=True)
class Interactions(Sweep):
    """Which heads matter together, pair by pair.

    Which heads matter together: for each pair the effect of ablating both, less the sum of the effects of ablating
    each. All pairs of 144 heads are 10,296 runs: --heads takes some. The cost is printed before it runs, an
    interrupted run resumes, and the results are read by show, plot, report and compare.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: pairs of these heads only, such as 3.0 or L3H0.
    """

    name = word = "interactions"
    example = "bertjax interactions --heads 3.0 3.1 5.7 --limit 200"

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")

    def prepare(self, context: Context) -> Job:
        """The job of all pairs and their heads."""
        config = context.job.model.config
        pairs = head_pairs(config, self.mode, heads=list_heads(self.heads, config))
        job = replace(context.job, ablations=with_singles(pairs))
        say_cost_of_contributions(job, 1 + len(job.ablations), context.say)
        if not context.shards:
            context.say_cost(job)
        introduce(job, context, "run")
        return job

    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """Interactions of all pairs."""
        kept, contributed = contributions_of(job, result)
        return outcome_of_examples(
            job,
            "interactions",
            interaction_metrics(job.metrics[0]),
            pair_interactions(job.ablations, contributed),
            kept.tolist(),
            [one for one in job.ablations if len(one.changes) == 2],
            means=means,
            metadata={"derived": describe_score(job, contributed)},
        )
