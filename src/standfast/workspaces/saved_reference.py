"""How a saved run refers to its workspace."""

import msgspec


class WorkspaceRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The variables and files of a run's Python, as the latest finished call of the run left them.

    ``key`` and ``workspace_id`` name the workspace, and ``store`` says where it is. ``checkpoint`` is the id of the
    latest checkpoint up to ``version``, as far as it was known when the run was saved.
    """

    key: str
    workspace_id: str
    version: int
    checkpoint: str | None = None
    store: str = ""
