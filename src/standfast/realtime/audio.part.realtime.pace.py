"""How fast audio or a recording goes: 1.0 is the speed of speech, ``None`` is without pauses."""

from holdfast.agents.errors import UserError


def validate_pace(pace: float | None, name: str = "pace") -> float | None:
    if pace is not None and not pace > 0:
        raise UserError(f"{name} must be above 0, or None to do without pauses, not {pace!r}")
    return pace
