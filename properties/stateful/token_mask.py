"""Token mask: a guide of decoding as a stateful operation. The oracle is `oracles.reference.compile_regex`."""

from __future__ import annotations

from oracles.reference import compile_regex

from .guide_laws import GUIDE_LAWS
from .guide_model import BY_TOKENS, DOT, GuideModel
from .guide_sequences import LOOKS_AHEAD, WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds, new
from .operation import Probe, StatefulOperation
from .sequence import RETURNED, Answer, Call


def _looks_ahead(answers: list[Answer]) -> bool:
    """That a token after which the vocabulary has nothing is forbidden."""
    return answers[-1].kind == RETURNED and not answers[-1].value[0]


def _leaves_out_the_line_feed(answers: list[Answer]) -> bool:
    """That a dot does not take it."""
    return answers[-1].kind == RETURNED and not answers[-1].value[1]


TOKEN_MASK = StatefulOperation(
    name="token_mask",
    summary="which tokens may come next so that the text ends in the language of a regular expression",
    oracle=compile_regex,
    required=("token_mask", "advance"),
    optional=("draft_masks",),
    arguments=(),
    sample=new("a", "a"),
    probes=(
        Probe(BY_TOKENS, (LOOKS_AHEAD, Call("token_mask", (0,))), _looks_ahead,
              "dead ends of the vocabulary: the guide allows a token after which the vocabulary has none to go on with, so its masks "
              "are judged by continuations in characters"),
        Probe(DOT, (new(".", "a", "\n"), Call("token_mask", (0,))), _leaves_out_the_line_feed,
              "the line feed behind a dot: the guide takes it, and is judged so"),
    ),
    model=GuideModel,
    laws=GUIDE_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "guide_walker", "guide_model", "guide_laws", "reference.regex_pattern",
             "reference.regex_automaton", "reference.token_automaton"),
    model_name="guide_model:GuideModel",
    laws_name="guide_laws:GUIDE_LAWS",
    source="Willard and Louf 2023 (arXiv 2307.09702)",
    walker_name="guide_walker:by_number",
)  # fmt: skip
