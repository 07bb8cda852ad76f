from standfast.agents import GuardrailFunctionOutput as GuardrailFunctionOutput
from standfast.agents import InputGuardrail as InputGuardrail
from standfast.agents import InputGuardrailResult as InputGuardrailResult
from standfast.agents import OutputGuardrail as OutputGuardrail
from standfast.agents import OutputGuardrailResult as OutputGuardrailResult
from standfast.agents import input_guardrail as input_guardrail
from standfast.agents import output_guardrail as output_guardrail
