-- The operations on documents, with the rules of sql/documents.py.

CREATE OR REPLACE FUNCTION {_commit_put_document}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    found_at bigint;
BEGIN
    LOOP
        found_at := {_commit_require_document}(op);
        IF found_at > 0 THEN
            UPDATE {_documents} SET data = blobs[(op->>'blob')::integer], revision = found_at + 1, written_at = now
            WHERE kind = op->>'kind' AND name = op->>'key';
            RETURN NULL;
        END IF;
        -- Of several first writers one inserts; the others wait for it here and then find the row.
        INSERT INTO {_documents} (kind, name, data, revision, written_at)
        VALUES (op->>'kind', op->>'key', blobs[(op->>'blob')::integer], 1, now)
        ON CONFLICT (kind, name) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_delete_document}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {_commit_require_document}(op);
    DELETE FROM {_documents} WHERE kind = op->>'kind' AND name = op->>'key';
    RETURN NULL;
END
$$;

-- Locks a document and returns its revision, 0 if there is none.
CREATE OR REPLACE FUNCTION {_commit_require_document}(op jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    found_at bigint;
BEGIN
    SELECT revision INTO found_at FROM {_documents} WHERE kind = op->>'kind' AND name = op->>'key' FOR UPDATE;
    IF (op->>'expected')::bigint <> coalesce(found_at, 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'HF014', MESSAGE = 'standfast: document moved',
            DETAIL = jsonb_build_object('kind', op->>'kind', 'key', op->>'key',
                'expected', (op->>'expected')::bigint, 'found', coalesce(found_at, 0))::text;
    END IF;
    RETURN coalesce(found_at, 0);
END
$$;
