"""Full-text search in an SQLite file. It is indexed when somebody searches, so appending pays nothing for it."""

from collections.abc import Sequence
from typing import Any

from holdfast.base.items import decode_item, text_of, words_of
from holdfast.store.contract import Found
from holdfast.store.relational.connection import Connection
from holdfast.store.relational.reads import as_bytes

_TABLES = (
    """CREATE TABLE IF NOT EXISTS {_search_rows} (
        id INTEGER PRIMARY KEY,
        tape INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        words TEXT NOT NULL,
        UNIQUE (tape, seq)
    )""",
    "CREATE TABLE IF NOT EXISTS {_searched} (tape INTEGER PRIMARY KEY, upto INTEGER NOT NULL)",
    """CREATE VIRTUAL TABLE IF NOT EXISTS {_search} USING fts5(
        words, content='{_search_rows}', content_rowid='id',
        tokenize="unicode61 remove_diacritics 0 categories 'L* M* N* Co'"
    )""",
    """CREATE TRIGGER IF NOT EXISTS {_search}_forgets AFTER DELETE ON {items} BEGIN
        INSERT INTO {_search} ({_search}, rowid, words)
            SELECT 'delete', id, words FROM {_search_rows} WHERE tape = old.tape AND seq = old.seq;
        DELETE FROM {_search_rows} WHERE tape = old.tape AND seq = old.seq;
    END""",
)
_CHUNK = 1000


def available(db: Connection) -> bool:
    row = db.one("SELECT sqlite_compileoption_used('ENABLE_FTS5')", {})
    return bool(row and row[0])


def prepare(db: Connection) -> None:
    for statement in _TABLES:
        db.run(statement, {})


def behind(db: Connection) -> Sequence[Sequence[Any]]:
    """Tapes on which something was written since it was last indexed: up to where it was, and up to where it is."""
    # A tape whose own session was forgotten lives on in the forks that show it. One damaged row among the
    # sessions must not keep the others from being found.
    return db.all(
        "SELECT t.tape, COALESCE(d.upto, 0), t.upto FROM"
        " (SELECT tape, next_seq AS upto FROM {sessions} UNION ALL"
        "  SELECT l.tape, MAX(l.upto) FROM {_links} l WHERE NOT EXISTS"
        "  (SELECT 1 FROM {sessions} s WHERE s.tape = l.tape) GROUP BY l.tape) t"
        " LEFT JOIN {_searched} d ON d.tape = t.tape WHERE t.upto > COALESCE(d.upto, 0)"
        " AND typeof(t.tape) = 'integer' AND typeof(t.upto) = 'integer' LIMIT :limit",
        {"limit": _CHUNK},
    )


def catch_up(db: Connection) -> None:
    """Index some of what was written since the last time."""
    room = _CHUNK
    for tape, start, stop in behind(db):
        room -= index(db, tape, start, stop, room)
        if room <= 0:
            return


def index(db: Connection, tape: int, start: int, stop: int, limit: int) -> int:
    """Index a stretch of a tape, at most ``limit`` items of it; how many there were."""
    stored = db.all(
        "SELECT seq, data FROM {items} WHERE tape = :tape AND seq >= :start AND seq < :stop ORDER BY seq LIMIT :limit",
        {"tape": tape, "start": start, "stop": stop, "limit": limit},
    )
    if len(stored) == limit:
        stop = stored[-1][0] + 1
    for seq, data in stored:
        try:
            words = " ".join(words_of(text_of(decode_item(as_bytes(data) or b""))))
        except ValueError:
            continue  # not an item, or sealed: there is nothing to find in it
        place = {"tape": tape, "seq": seq, "words": words}
        db.run("INSERT OR IGNORE INTO {_search_rows} (tape, seq, words) VALUES (:tape, :seq, :words)", place)
        db.run(
            "INSERT INTO {_search} (rowid, words)"
            " SELECT id, words FROM {_search_rows} WHERE tape = :tape AND seq = :seq",
            place,
        )
    db.run(
        "INSERT INTO {_searched} (tape, upto) VALUES (:tape, :upto)"
        " ON CONFLICT (tape) DO UPDATE SET upto = excluded.upto",
        {"tape": tape, "upto": stop},
    )
    return len(stored)


def find(
    db: Connection, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
) -> list[Found]:
    found = db.all(
        "SELECT v.session_id, r.tape, r.seq, i.data FROM {_search} JOIN {_search_rows} r ON r.id = {_search}.rowid"
        " JOIN {items} i ON i.tape = r.tape AND i.seq = r.seq"
        " JOIN (SELECT tape, session_id, next_seq AS upto, updated_at, owner FROM {sessions} UNION ALL"
        "       SELECT l.tape, l.session_id, l.upto, s.updated_at, s.owner FROM {_links} l"
        "       JOIN {sessions} s ON s.session_id = l.session_id) v ON v.tape = r.tape AND r.seq < v.upto"
        " WHERE {_search} MATCH :match AND (:session_id IS NULL OR v.session_id = :session_id)"
        " AND (:owner IS NULL OR v.owner = :owner)"
        " ORDER BY v.updated_at DESC, v.session_id, i.tape = (SELECT tape FROM {sessions} s"
        " WHERE s.session_id = v.session_id) DESC, r.seq DESC LIMIT :limit OFFSET :skip",
        {
            "match": " AND ".join(f'"{term}"*' for term in terms),
            "session_id": session_id,
            "owner": owner,
            "limit": limit,
            "skip": skip,
        },
    )
    return [Found(session, tape, seq, as_bytes(data) or b"") for session, tape, seq, data in found]
