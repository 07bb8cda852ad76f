from agents import Agent, Runner

result = Runner.run_sync(Agent(name="A", model="gpt-4.1"), "hello")
print(result.final_output, [item.type for item in result.new_items])
