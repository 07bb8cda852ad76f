"""Ready-made input filters for handoffs, under the name that programs know them by."""

from holdfast.agents.handoff_history import default_handoff_history_mapper, nest_handoff_history, remove_all_tools

__all__ = ["default_handoff_history_mapper", "nest_handoff_history", "remove_all_tools"]
