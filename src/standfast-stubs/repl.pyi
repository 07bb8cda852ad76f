from standfast.runs import run_demo_loop as run_demo_loop
from standfast.runs.config import DEFAULT_MAX_TURNS as DEFAULT_MAX_TURNS
