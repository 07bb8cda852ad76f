import asyncio

import httpx2 as httpx
import openai
from agents import (
    Agent,
    ModelRetryBackoffSettings,
    ModelRetryNormalizedError,
    ModelRetrySettings,
    ModelSettings,
    RetryDecision,
    RetryPolicyContext,
    Runner,
    retry_policies,
)
from agents.testing import ScriptedModel, assistant_message

request = httpx.Request("POST", "http://127.0.0.1/v1")


def status(code, headers=None):
    return openai.APIStatusError("bad", response=httpx.Response(code, request=request, headers=headers), body=None)


async def attempt(label, error, policy, tries=2):
    settings = ModelSettings(
        retry=ModelRetrySettings(
            max_retries=tries,
            policy=policy,
            backoff=ModelRetryBackoffSettings(initial_delay=0.0, max_delay=0.0, multiplier=1.0, jitter=False),
        )
    )
    model = ScriptedModel([error, error, [assistant_message("done")]])
    try:
        result = await Runner.run(Agent(name="a", model=model, model_settings=settings), "x")
        print(label, result.final_output, result.context_wrapper.usage.requests)
    except Exception as raised:
        print(label, type(raised).__name__)


def show(context: RetryPolicyContext) -> RetryDecision:
    print(
        type(context.error).__name__,
        context.attempt,
        context.max_retries,
        context.stream,
        context.normalized.status_code,
        context.normalized.is_network_error,
        context.normalized.is_timeout,
    )
    return RetryDecision(retry=True, delay=0.0, reason="why not")


async def main() -> None:
    for code in (408, 409, 429, 400, 500, 503):
        await attempt(f"http {code}", status(code), retry_policies.http_status([429, 500, 503]))
    await attempt("suggested", status(429, {"retry-after": "0"}), retry_policies.provider_suggested())
    await attempt("retry_after", status(429, {"retry-after": "0"}), retry_policies.retry_after())
    await attempt("no retry_after", status(429), retry_policies.retry_after())
    await attempt("never", status(500), retry_policies.never())
    await attempt(
        "any",
        openai.APITimeoutError(request),
        retry_policies.any(retry_policies.never(), retry_policies.network_error()),
    )
    await attempt(
        "all", status(500), retry_policies.all(retry_policies.http_status([500]), retry_policies.network_error())
    )
    await attempt("own", status(500), show)
    await attempt("bool", ValueError("x"), lambda context: context.attempt < 2)
    await attempt("plain", ValueError("x"), retry_policies.network_error())
    await attempt("one", status(500), retry_policies.http_status([500]), tries=1)
    print(
        ModelRetryNormalizedError().status_code,
        RetryDecision(retry=False).retry,
        ModelSettings(retry={"max_retries": 1}).retry.max_retries,
    )


asyncio.run(main())
