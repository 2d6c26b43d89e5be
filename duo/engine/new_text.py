"""New texts: the Generation of a request, with what may propose candidates for it."""

from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache, belong
from duo.engine.model_pair import ModelPair
from duo.engine.proposers import RunningText
from duo.engine.request import Ending, Request, choosing
from duo.speculation.constants import DEFAULT
from duo.speculation.modes import Schedule


def new_text(slot: ModelPair, request: Request, cache: Cache) -> Generation:
    """A new text, of whose prompt the `cache` may hold a part. Raises UsageError."""
    config, target, slot.memories.owner = request.config, slot.target, request.owner
    sources = request.proposers or proposers(slot, request)
    banned = target.end_tokens if config.stop.ignore_eos else ()
    n_alternatives = len(DEFAULT.ranks) if slot.n_branches else int(slot.controller.n_alternatives > 0)
    verifier, sampler = choosing(target, config, banned, n_alternatives)
    belong(slot.caches if cache is slot.target_cache else [cache], request.owner)
    if not request.reuses:
        cache.clear()
    request.n_cached = cache.begin(request.prompt, None if request.scored is None else config.n_logprobs or 0)
    if request.scored is not None:
        request.scored = cache.scored
    ending = request.metrics.ending = Ending(config.stop, target.piece, target.is_end)
    text = RunningText(
        list(request.prompt), ending, request.metrics, verifier, sampler, config.sampling, target.n_vocab, banned,
        config.mode, judges_all=not config.is_rejection, n_most=request.drafting.n_limit,
    )  # fmt: skip
    logprobs, scored = config.n_logprobs, request.scored
    return Generation(cache.context, text, slot.threads, sources, request.on_prompt, logprobs, slot.cores, scored)


def proposers(slot: ModelPair, request: Request) -> Proposers:
    """What may propose candidates for a text in the contexts that there are."""
    asked, is_rejection = request.drafting, request.config.is_rejection
    drafting, lookup = asked.applied(slot.drafting), asked.lookup is not False
    if drafting.schedule == Schedule.OFF.value:  # there is nothing to learn
        return slot.proposers(drafts=False, remote=False, lookup=bool(asked.lookup))
    if not drafting.n_max:
        return Proposers()
    if drafting != slot.drafting:
        return slot.limited(drafting, lookup=lookup, remote=not is_rejection)
    return slot.proposers(remote=not is_rejection, lookup=lookup)
