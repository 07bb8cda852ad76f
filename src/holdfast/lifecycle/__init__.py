"""Ownership of tasks, resources, threads and states."""

from holdfast.lifecycle.channel import Channel, Full
from holdfast.lifecycle.machine import FaultyTable, IllegalTransition, Machine, Table
from holdfast.lifecycle.owner import Owner
from holdfast.lifecycle.scope import NEVER, AlreadyStarted, CutOff, Deadline, Scope
from holdfast.lifecycle.threads import Job, OneThread, Unanswered, one_by_one

__all__ = [
    "NEVER",
    "AlreadyStarted",
    "Channel",
    "CutOff",
    "Deadline",
    "FaultyTable",
    "Full",
    "IllegalTransition",
    "Job",
    "Machine",
    "OneThread",
    "Owner",
    "Scope",
    "Table",
    "Unanswered",
    "one_by_one",
]
