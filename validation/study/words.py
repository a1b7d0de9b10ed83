"""What the words of an accuracy page mean: a paragraph above its first figure.

The reports and programs that write the pages put it there.
"""

from __future__ import annotations

_SYSTEM = "A *system* is one machine of one publisher: its logs differ in nodes, collective or settings."
_ERROR = (
    "An *error* is |predicted - measured| / measured of a time; that of a log the mean over its sizes. "
    f"{_SYSTEM} Of two figures `a / b` the first is the median over logs, the second the median over systems of the "
    "median over their logs, so that no publisher counts by the number of its logs. *zero-shot*: nothing of the system "
    "is known but what the index says"
)
_NETWORKS = (
    "Sizes that are known are not scored. *IB/RoCE* are networks that NCCL drives itself, *plugin* those that a "
    "library of the cloud drives."
)

WORDS = {
    "accuracy": (
        f"{_ERROR}; *two*: the times of its first and last size are; *few*: of three sizes; *transfer*: one all_reduce "
        "log of the system; *shapes*: its logs on other numbers of nodes or GPUs; *calibrated*: every second size of "
        "all of them; *forced*: nothing but the algorithm and protocol that come nearest to each measured time. "
        f"{_NETWORKS}"
    ),
    "accuracy-outside": f"{_ERROR}; *three sizes*: those nearest 256 B, 1 MiB and 1 GiB. {_NETWORKS}",
    "accuracy-decisions": (
        "A *band* is the range around a predicted time that holds 8 of 10 published steps. A *margin* is the ratio of "
        "two predicted times below which their order is not sure: within it two layouts are a *tie*, beyond it they "
        "*differ*. *right* is the part of those said to differ whose order is the published one. A *rule* of the tuner "
        "is a choice of algorithm or protocol that should be quicker; it is *confirmed* by a log in which it was. "
        "*left out*: nothing of that source was known to what is scored."
    ),
    "accuracy-degraded": (
        "*measured* and *predicted* are the ratio of a pair, degraded over healthy time: 2 is half as fast. *error* is "
        "that of the predicted ratio, in percent. *direction*: whether the prediction slows down where the measurement "
        "does. *healthy* and *degraded* are predicted over measured time of either side: below 1 the prediction is too "
        "quick."
    ),
    "accuracy-doctor": (
        "A *test* is one run of a collective on some hosts, a *round* those that run at once. "
        "*clusters* says how many hosts and faults there were, *n* how many clusters were drawn."
    ),
    "accuracy-dumps": (
        "A *dump* is what a job left of its calls: a flight recorder, a trace, a log of an inspector. A *set* has the "
        "files of all ranks of a job. *Waiting* is the time in a call until its last rank has entered. *hostile* "
        "files are broken on purpose; they must be refused."
    ),
    "accuracy-generation": (
        "*tpot* is the time per output token, *ttft* the time to the first token; both columns are median errors in "
        "percent. *bias* is the median of predicted / measured - 1, in percent: above 0 the prediction is too slow. "
        "*GPU left out*: by parameters that were fitted without any row of that GPU. *formats* are those of the "
        "weights, *mesh* is how many GPUs share tensors (tp) and experts (ep), *concurrency* how many clients ask."
    ),
    "accuracy-gloo": (
        "*sizes left out*: the error on sizes that the fit has not seen, each in turn; *as shipped*: without a fit. An "
        "error is |predicted - measured| / measured time. *spread of repeats*: half of highest less lowest over five "
        "runs of the same call; no model can be nearer than that. *slowdown*: time with the cause over time without. "
        "A *bar* is what was to be reached."
    ),
    "accuracy-kernels": (
        "A *kernel* is an all-reduce of a serving framework on one node. *predicted / measured* is the median of that "
        "ratio of times: above 1 the prediction is too slow. Calls are captured in a CUDA *graph*, or *eager*: Python "
        "makes each. A *curve* is what one framework measures over the sizes on one kind and number of GPUs."
    ),
    "accuracy-raw-logs": (
        "A log is *settled* where it leaves one machine, *asked* where several fit and the user must say which, "
        "*refused* where none does. *at place*: where the true machine stands in the list of candidates. *wrong*: what "
        "was said that is not true."
    ),
    "accuracy-rl": (
        "*printed* is what the source says of a step, *predicted* what commsim does; *ratio* is the second over the "
        "first. A *rollout* is the answering of all prompts, *scoring* the forwards over the answers, *updates* the "
        "training on them, *sync* the weights on their way to the engines. *in step*: trainer and engines wait "
        "for each other; *one step ahead*: engines answer the next prompts meanwhile."
    ),
    "accuracy-terms": (
        "A *term* is one part of the model of NCCL's time. *gain* is in points of the mean error: +1 is 9 % with the "
        "term and 10 % without. *better*: how many systems gain. *where it was read off*: the gain on the systems that "
        "its value comes from. *small* is up to 32 KiB, *mid* up to 16 MiB, *large* above."
    ),
    "accuracy-training": (
        "*MAPE* is the mean of the absolute errors of the rows of a group, *median* their median, *p90* what nine of "
        "ten stay below, *bias* the median of the signed errors: above 0 the prediction is too slow. A *row* is one "
        "published step. *closed form* is the quick estimate by which plans are ranked, *simulation* what "
        "`commsim run` does. *null* is a model of seven coefficients, *study* an earlier program; a *bar* is what was "
        "to be reached. *experts*: mixtures of experts."
    ),
    "accuracy-verdicts": (
        "The *verdict* of a log is as expected, slower, faster, or cannot judge. A log is *healthy* or *degraded* by "
        "what its source says. A *cause* is one change of the machine or its settings that would explain a slow log; "
        "*true one (%)* is the probability that the command gives to the cause that it was. *scale* is the width of "
        "what healthy systems differ by: a tenth is about 10 %."
    ),
}


def words_of(page: str) -> str:
    """The paragraph of `docs/PAGE.md` that says what its words mean."""
    return f"**Words.** {WORDS[page]}"
