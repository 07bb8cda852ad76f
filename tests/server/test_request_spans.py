"""Requests in OpenTelemetry: below the span of the client, and above the run that they start."""

from telemetry import ExportedSpans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_run_belongs_to_the_trace_of_the_request_that_started_it(exported: ExportedSpans, server):
    ann = server.sign_in("ann")
    started = await ann.post("/runs", {"agent": "desk", "input": "hi"}, traceparent=f"00-{TRACE}-{SPAN}-01")
    run_id = started.json()["run_id"]
    await ann.read_events(run_id)
    request = exported.named("POST /runs")
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, SPAN)
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["http.route"] == "/runs"
    agent = exported.named("invoke_agent desk")
    assert f"{agent.context.trace_id:032x}" == TRACE
    followed = exported.named("GET /runs/{run_id}/events")
    assert followed.attributes["standfast.run_id"] == run_id


async def test_a_refused_request_has_its_status_and_no_secret(exported: ExportedSpans, server):
    await server.sign_in("mallory").get("/runs")
    assert exported.named("GET /runs").attributes["http.response.status_code"] == 401
    assert "mallory" not in exported.text()
