import asyncio

from agents import Agent, ModelSettings, Runner, WebSearchTool, custom_span, gen_trace_id, trace
from pydantic import BaseModel


class SearchItem(BaseModel):
    reason: str
    query: str


class SearchPlan(BaseModel):
    searches: list[SearchItem]


class Report(BaseModel):
    short_summary: str
    markdown_report: str
    follow_up_questions: list[str]


planner = Agent(name="PlannerAgent", instructions="Plan searches.", model="gpt-4o", output_type=SearchPlan)
searcher = Agent(
    name="Search agent",
    instructions="Search.",
    tools=[WebSearchTool()],
    model_settings=ModelSettings(tool_choice="required"),
)
writer = Agent(name="WriterAgent", instructions="Write.", model="o3-mini", output_type=Report)


async def main() -> None:
    with trace("Research trace", trace_id=gen_trace_id()):
        plan = (await Runner.run(planner, "Query: tea")).final_output_as(SearchPlan)
        found = []
        with custom_span("Search the web"):
            for item in plan.searches:
                found.append(str((await Runner.run(searcher, f"Search term: {item.query}")).final_output))
        result = Runner.run_streamed(writer, f"Results: {found}")
        async for _ in result.stream_events():
            pass
        report = result.final_output_as(Report)
        print(report.short_summary, report.follow_up_questions)


asyncio.run(main())
