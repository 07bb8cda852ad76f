from standfast.agents import DocstringStyle as DocstringStyle
from standfast.agents import FuncSchema as FuncSchema
from standfast.agents import function_schema as function_schema
