"""Tool calls: approval, guardrails and execution, shared by text runs and realtime sessions."""
