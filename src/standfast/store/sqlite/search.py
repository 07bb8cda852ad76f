"""Full-text search in an SQLite file. Items are indexed on the first search after they were added.

Every indexed tape has a number, and the row id of an item in the index combines that number with the item's ``seq``.
The place of a match is therefore known from the index alone, and only items of the result are read.
"""

from collections.abc import Sequence
from typing import Any

from standfast.base.items import decode_item
from standfast.base.text import extract_text, extract_words
from standfast.store.records import SearchCandidate
from standfast.store.sql.connection import DatabaseConnection, as_bytes
from standfast.store.sqlite.erasure import prepare_index

_CREATE_INDEX = (
    "CREATE TABLE IF NOT EXISTS {_searched} (number INTEGER PRIMARY KEY, tape INTEGER NOT NULL UNIQUE, upto INTEGER)",
    "CREATE TABLE IF NOT EXISTS {_search_rows} (id INTEGER PRIMARY KEY, words TEXT NOT NULL)",
    """CREATE VIRTUAL TABLE IF NOT EXISTS {_search} USING fts5(
        words, content='{_search_rows}', content_rowid='id',
        tokenize="unicode61 remove_diacritics 0 categories 'L* M* N* Co'"
    )""",
    # Merge segments late, and a few pages with each write. By default FTS5 merges sixteen whole segments at once, and
    # all other writers would wait for that.
    "INSERT INTO {_search} ({_search}, rank) VALUES ('automerge', 16)",
    "INSERT INTO {_search} ({_search}, rank) VALUES ('crisismerge', 64)",
    """CREATE TRIGGER IF NOT EXISTS {_search}_forgets AFTER DELETE ON {items} BEGIN
        INSERT INTO {_search} ({_search}, rowid, words) SELECT 'delete', id, words FROM {_search_rows}
            WHERE id = (SELECT number << 32 | old.seq FROM {_searched} WHERE tape = old.tape);
        DELETE FROM {_search_rows}
            WHERE id = (SELECT number << 32 | old.seq FROM {_searched} WHERE tape = old.tape);
    END""",
)
_DROP_OLD_INDEX = (  # an index that an earlier version created
    "DROP TRIGGER IF EXISTS {_search}_forgets",
    "DROP TABLE IF EXISTS {_search}",
    "DROP TABLE IF EXISTS {_search_rows}",
    "DROP TABLE IF EXISTS {_searched}",
)
_VISIBLE_TAPES = (  # the sessions with items on an indexed tape, and where these end
    "(SELECT d.number, d.tape, s.session_id, s.next_seq AS upto, 1 AS own, s.updated_at"
    " FROM {_searched} d JOIN {sessions} s ON s.tape = d.tape WHERE <which> UNION ALL"
    " SELECT d.number, d.tape, s.session_id, l.upto, 0, s.updated_at FROM {_searched} d"
    " JOIN {_links} l ON l.tape = d.tape JOIN {sessions} s ON s.session_id = l.session_id WHERE <which>) v"
)
_MAX_SEQ = 2**32  # on one tape
_BATCH_BYTES = 300_000  # of items indexed in one transaction, so that other writers need not wait long
_ROW_OVERHEAD = 64  # bytes that an item or a tape counts for in addition to its data
_BATCH_ITEMS = 50  # read at once; items may be large
_SHORT_TEXT = 10_000  # characters


def is_available(db: DatabaseConnection) -> bool:
    row = db.fetch_one("SELECT sqlite_compileoption_used('ENABLE_FTS5')", {})
    return bool(row and row[0])


def create_index(db: DatabaseConnection) -> None:
    columns = [name for (name,) in db.fetch_all("SELECT name FROM pragma_table_info('{_searched}')", {})]
    for statement in (*(_DROP_OLD_INDEX if columns and "number" not in columns else ()), *_CREATE_INDEX):
        db.execute(statement, {})
    prepare_index(db)


def find_unindexed_tapes(db: DatabaseConnection, session_id: str | None) -> Sequence[Sequence[Any]]:
    """Return (tape, end) for each tape, of one session or of all, that has items which are not indexed."""
    # The type checks skip damaged rows, so that the other sessions can still be searched.
    return db.fetch_all(
        "SELECT t.tape, t.upto FROM (SELECT session_id, tape, next_seq AS upto FROM {sessions} UNION ALL"
        " SELECT session_id, tape, upto FROM {_links}) t LEFT JOIN {_searched} d ON d.tape = t.tape"
        " WHERE t.upto > COALESCE(d.upto, 0) AND typeof(t.tape) = 'integer' AND typeof(t.upto) = 'integer'"
        f" AND t.upto < {_MAX_SEQ}" + (" AND t.session_id = :session_id" if session_id is not None else ""),
        {"session_id": session_id},
    )


def index_tapes(db: DatabaseConnection, tapes: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Index one batch of the items on these tapes. Returns the tapes that are not finished."""
    budget = _BATCH_BYTES
    rows: list[dict[str, Any]] = []
    done = 0
    for tape, stop in tapes:
        budget = index_tape(db, tape, stop, budget, rows)
        if budget <= 0:
            break
        done += 1
    db.execute_many("INSERT INTO {_search_rows} (id, words) VALUES (:id, :words)", rows)
    db.execute_many("INSERT INTO {_search} (rowid, words) VALUES (:id, :words)", rows)
    return tapes[done:]


def index_tape(db: DatabaseConnection, tape: int, stop: int, budget: int, rows: list[dict[str, Any]]) -> int:
    """Collect the index rows of a tape until the budget is used up. Returns the remaining budget."""
    db.execute("INSERT OR IGNORE INTO {_searched} (tape, upto) VALUES (:tape, 0)", {"tape": tape})
    number, upto = db.fetch_one("SELECT number, upto FROM {_searched} WHERE tape = :tape", {"tape": tape}) or (0, 0)
    budget -= _ROW_OVERHEAD
    while upto < stop and budget > 0:
        stored = db.fetch_all(
            "SELECT seq, data FROM {items} WHERE tape = :tape AND seq >= :upto AND seq < :stop ORDER BY seq"
            " LIMIT :limit",
            {"tape": tape, "upto": upto, "stop": stop, "limit": _BATCH_ITEMS},
        )
        for seq, data in stored:
            budget -= _ROW_OVERHEAD + len(data or b"")
            words = extract_index_text(as_bytes(data) or b"")
            if words:
                rows.append({"id": number << 32 | seq, "words": words})
        upto = stored[-1][0] + 1 if len(stored) == _BATCH_ITEMS else stop
    db.execute("UPDATE {_searched} SET upto = :upto WHERE tape = :tape AND upto < :upto", {"tape": tape, "upto": upto})
    return budget


def extract_index_text(data: bytes) -> str:
    """Return the text of an item for the index; empty for an encrypted or unreadable one."""
    try:
        text = extract_text(decode_item(data))
    except ValueError:
        return ""
    # For ASCII, the tokenizer of the index splits and folds words exactly as extract_words does.
    return text if len(text) < _SHORT_TEXT and text.isascii() else " ".join(extract_words(text))


def find(
    db: DatabaseConnection, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
) -> list[SearchCandidate]:
    # For one session, search each of its tapes; for all sessions, search the index once and then look up the tapes.
    if session_id is not None:
        which, tables = "s.session_id = :session_id", f"{_VISIBLE_TAPES} CROSS JOIN {{_search}}"
    else:
        which = "d.number IN (SELECT rowid >> 32 FROM {_search} WHERE {_search} MATCH :match)"
        tables = f"{{_search}} CROSS JOIN {_VISIBLE_TAPES}"
    if owner is not None:
        which += " AND s.owner = :owner"
    found = db.fetch_all(
        f"SELECT v.session_id, v.tape, {{_search}}.rowid - (v.number << 32) FROM {tables.replace('<which>', which)}"
        " WHERE {_search} MATCH :match AND v.number = {_search}.rowid >> 32"
        " AND {_search}.rowid >= v.number << 32 AND {_search}.rowid < (v.number << 32) + v.upto"
        " ORDER BY v.updated_at DESC, v.session_id, v.own DESC, {_search}.rowid DESC LIMIT :limit OFFSET :skip",
        {
            "match": " AND ".join(f'"{term}"*' for term in terms),
            "session_id": session_id,
            "owner": owner,
            "limit": limit,
            "skip": skip,
        },
    )
    return [SearchCandidate(name, tape, seq, read_item(db, tape, seq)) for name, tape, seq in found]


def read_item(db: DatabaseConnection, tape: int, seq: int) -> bytes:
    row = db.fetch_one("SELECT data FROM {items} WHERE tape = :tape AND seq = :seq", {"tape": tape, "seq": seq})
    return (as_bytes(row[0]) if row else None) or b""
