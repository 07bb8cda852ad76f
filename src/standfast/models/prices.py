"""What the requests of models cost in US dollars, by the price list of genai-prices, which needs no network."""

from functools import cache
from typing import Any

from standfast.base.usage import Usage


@cache
def load_price_list() -> Any:
    """Return the module with the price list, or ``None`` if the extra ``prices`` is not installed.

    The first call takes half a second.
    """
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def compute_cost(model: str | None, usage: Usage) -> float | None:
    """Return what these tokens cost, or ``None`` if the price is not known.

    A name may begin with prefixes, as in ``litellm/anthropic/claude-sonnet-4-5``.
    """
    prices = load_price_list() if model else None
    if prices is None:
        return None
    read = usage.input_tokens_details
    counted = prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=read.cached_tokens,
        cache_write_tokens=read.cache_write_tokens,
    )
    try:
        return float(prices.calc_price(counted, model_ref=str(model).rpartition("/")[2]).total_price)
    except (LookupError, ValueError):  # an unknown model; counts that contradict each other
        return None
