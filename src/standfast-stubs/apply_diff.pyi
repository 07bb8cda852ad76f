from standfast.agents import apply_diff as apply_diff
from standfast.agents.diffs import ApplyDiffMode as ApplyDiffMode
