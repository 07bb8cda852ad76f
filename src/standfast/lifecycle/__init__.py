"""Structured ownership of tasks, resources and threads; bounded channels; state machines."""

from standfast.lifecycle.channel import Channel, ChannelFull
from standfast.lifecycle.owner import Owner
from standfast.lifecycle.scope import NEVER, AlreadyStarted, CloseTimeout, Deadline, Scope
from standfast.lifecycle.state_machine import IllegalTransition, InvalidTransitionTable, StateMachine, TransitionTable
from standfast.lifecycle.threads import Job, SingleThreadExecutor, UnansweredJob, run_jobs_in_order

__all__ = [
    "NEVER",
    "AlreadyStarted",
    "Channel",
    "ChannelFull",
    "CloseTimeout",
    "Deadline",
    "IllegalTransition",
    "InvalidTransitionTable",
    "Job",
    "Owner",
    "Scope",
    "SingleThreadExecutor",
    "StateMachine",
    "TransitionTable",
    "UnansweredJob",
    "run_jobs_in_order",
]
