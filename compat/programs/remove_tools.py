from agents.extensions.handoff_filters import remove_all_tools
from agents.handoffs import HandoffInputData

call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
output = {"type": "function_call_output", "call_id": "c1", "output": "x"}
history = ({"role": "user", "content": "hello"}, call, output)
data = remove_all_tools(HandoffInputData(input_history=history, pre_handoff_items=(), new_items=()))
print(data.input_history)
