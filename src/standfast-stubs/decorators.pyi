from standfast.agents import function_tool as function_tool
from standfast.agents import input_guardrail as input_guardrail
from standfast.agents import output_guardrail as output_guardrail
from standfast.agents import tool_input_guardrail as tool_input_guardrail
from standfast.agents import tool_output_guardrail as tool_output_guardrail
tool = function_tool
