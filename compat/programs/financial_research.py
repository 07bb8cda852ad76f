import asyncio

from agents import Agent, Runner, RunResult, RunResultStreaming
from pydantic import BaseModel


class AnalysisSummary(BaseModel):
    summary: str


class FinancialReport(BaseModel):
    short_summary: str
    follow_up_questions: list[str]


async def summary_extractor(result: RunResult | RunResultStreaming) -> str:
    return str(result.final_output.summary)


risk = Agent(name="RiskAnalyst", instructions="Find red flags.", output_type=AnalysisSummary)


async def main() -> None:
    tool = risk.as_tool(tool_name="risk_analysis", tool_description="Flags.", custom_output_extractor=summary_extractor)
    writer = Agent(name="Writer", instructions="Write.", output_type=FinancialReport).clone(tools=[tool])
    print([each.name for each in writer.tools], writer.output_type.__name__)
    result = await Runner.run(writer, "Analyse ACME.")
    print(result.final_output.short_summary, result.final_output.follow_up_questions)


asyncio.run(main())
