"""The parts of a runtime: journal, leases, scheduler, executor, approvals and recovery."""
