from standfast.runs import ToolOutputTrimmer as ToolOutputTrimmer
