"""Ownership of tasks, resources, threads and states."""

from holdfast.lifecycle.channel import Channel, ChannelFull
from holdfast.lifecycle.machine import IllegalTransition, InvalidTransitionTable, StateMachine, TransitionTable
from holdfast.lifecycle.owner import Owner
from holdfast.lifecycle.scope import NEVER, AlreadyStarted, CloseTimeout, Deadline, Scope
from holdfast.lifecycle.threads import Job, SingleThreadExecutor, UnansweredJob, run_jobs_in_order

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
