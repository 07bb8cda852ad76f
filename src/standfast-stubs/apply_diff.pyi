from standfast.agents import apply_diff as apply_diff
from standfast.agents.editor import ApplyDiffMode as ApplyDiffMode
