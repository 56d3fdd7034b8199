-- What operators ask: lists in pages, and counts.

CREATE INDEX audit_records_at ON onceward.audit_records (at);

-- The state that `load` would tell.
CREATE FUNCTION onceward.shown_state(state text, expires_at bigint, now bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN state IN ('completed', 'failed_retryable') AND expires_at <= now
                THEN 'expired' ELSE state END
$$;

-- Whether `load` would find it.
CREATE FUNCTION onceward.is_there(state text, expires_at bigint, tombstone bigint, now bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT state NOT IN ('completed', 'failed_retryable', 'expired')
        OR onceward.plus(expires_at, tombstone) > now
$$;

-- A condition on a column, if the filter asks for it.
CREATE FUNCTION onceward.condition(filter jsonb, name text, condition text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN filter ->> name IS NULL THEN ''
                ELSE ' AND ' || format(condition, filter ->> name) END
$$;

-- Records by a filter, without their replies. Planned anew at each call, for what is asked.
CREATE FUNCTION onceward.list(at bigint, filter jsonb) RETURNS SETOF onceward.found
LANGUAGE plpgsql STABLE AS $$
DECLARE
    now bigint := onceward.micros(list.at);
    states text[] := ARRAY(SELECT jsonb_array_elements_text(filter -> 'states'));
    sorted text := CASE WHEN (filter ->> 'overdue')::boolean THEN 'give_up_at'
                        WHEN filter ->> 'sort' = 'expires_at' THEN 'expires_at'
                        ELSE 'created_at' END;
    down boolean := (filter ->> 'descending')::boolean;
    direction text := CASE WHEN down THEN 'DESC' ELSE 'ASC' END;
    overdue boolean := coalesce((filter ->> 'overdue')::boolean, false);
    -- What has a time to be given up is pending. Said once more, the planner would take it for rare, and
    -- sort all of it instead of following the index.
    conditions text := CASE WHEN overdue THEN format('r.give_up_at <= %s', now)
        ELSE format('onceward.is_there(r.state, r.expires_at, r.tombstone, %s)', now) END;
BEGIN
    conditions := conditions
        || onceward.condition(filter, 'scope', 'r.scope = %L')
        || onceward.condition(filter, 'key', 'r.key = %L')
        || onceward.condition(filter, 'key_prefix', 'r.key >= %1$L AND starts_with(r.key, %1$L)')
        || onceward.condition(filter, 'route', 'r.route = %L')
        || onceward.condition(filter, 'effects', 'r.effects = %L')
        || onceward.condition(filter, 'created_from', 'r.created_at >= %s')
        || onceward.condition(filter, 'created_before', 'r.created_at < %s')
        || onceward.condition(filter, 'finished_from', 'r.finished_at >= %s')
        || onceward.condition(filter, 'finished_before', 'r.finished_at < %s')
        || onceward.condition(filter, 'reconcile_after', 'r.reconcile_after = %s');
    IF filter ->> 'older_than' IS NOT NULL THEN
        conditions := conditions || format(
            ' AND r.created_at <= %s', now - (filter ->> 'older_than')::bigint);
    END IF;
    IF cardinality(states) > 0 AND NOT (overdue AND 'pending' = ANY (states)) THEN
        conditions := conditions || format(
            ' AND onceward.shown_state(r.state, r.expires_at, %s) = ANY (%L::text[])', now, states);
    END IF;
    -- What is open is little, and has lists of its own. That of leases has much besides: whoever asks
    -- for what is in progress asks for one span of it after another.
    IF states = ARRAY['unknown'] THEN
        conditions := conditions || ' AND r.reconcile_after IS NOT NULL';
    ELSIF states = ARRAY['in_progress'] THEN
        conditions := conditions || ' AND r.record_id IN (
            SELECT o.record_id FROM onceward.leases l
            CROSS JOIN LATERAL (SELECT o.record_id FROM onceward.records o
                                WHERE o.created_at = l.created_at AND o.state = ''in_progress''
                                OFFSET 0) o
            WHERE true'
            || onceward.condition(filter, 'created_from', 'l.created_at >= %s')
            || onceward.condition(filter, 'created_before', 'l.created_at < %s') || ')';
    ELSIF states = ARRAY['pending'] AND NOT overdue THEN
        conditions := conditions || ' AND r.due_at IS NOT NULL';
    END IF;
    IF filter ->> 'after_at' IS NOT NULL THEN
        conditions := conditions || format(
            ' AND r.%1$I %2$s= %3$s AND (r.%1$I, r.scope, r.key) %2$s (%3$s, %4$L, %5$L)',
            sorted, CASE WHEN down THEN '<' ELSE '>' END, (filter ->> 'after_at')::bigint,
            filter ->> 'after_scope', filter ->> 'after_key');
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT NULL::integer, ''''::text, %1$s::bigint, r.record_id, r.scope::text, r.key::text,
                r.recipe, r.fingerprint::bytea, r.generation::integer, r.state::text, r.attempt,
                r.fence::bigint, r.attempts, r.effects::text, r.route, r.method, r.path, r.created_at, r.started_at, r.lease_until,
                r.max_execution, r.finished_at, r.expires_at, r.retention, r.tombstone,
                r.last_error, r.reconcile_after, r.void, r.recovery_point, r.open_effect,
                r.open_effect_idempotent, r.reply_status, ''\x01''::bytea, NULL::text, NULL::bytea,
                r.queued_until, r.probes, r.asked_at, r.absent_at
         FROM onceward.records r WHERE %2$s
         ORDER BY r.%3$I %4$s, r.scope %4$s, r.key %4$s LIMIT %5$s OFFSET %6$s',
        now, conditions, sorted, direction, (filter ->> 'limit')::integer,
        (filter ->> 'skipped')::bigint);
END
$$;

-- The moment at which so many rows of the list of leases have been passed, from one end of a span of
-- time; null if there are fewer. The rows are short: to read them all is little beside finding the
-- records behind them.
CREATE FUNCTION onceward.moment(first bigint, before bigint, descending boolean, most bigint)
RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT l.created_at FROM onceward.leases l
    WHERE l.created_at >= moment.first AND l.created_at < moment.before
    ORDER BY CASE WHEN descending THEN -l.created_at ELSE l.created_at END
    OFFSET most - 1 LIMIT 1
$$;

-- Audit records by a filter, the latest first, without the replies in them.
CREATE FUNCTION onceward.audit_log(filter jsonb)
RETURNS TABLE (at bigint, scope text, key text, generation integer, event text, attempt uuid,
               fence bigint, reason text, reply_status smallint, reply_headers bytea,
               reply_schema text, reply_body bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    conditions text := 'true';
BEGIN
    conditions := conditions
        || onceward.condition(filter, 'event', 'a.event = %L')
        || onceward.condition(filter, 'scope', 'a.scope = %L')
        || onceward.condition(filter, 'from', 'a.at >= %s')
        || onceward.condition(filter, 'before', 'a.at < %s');
    IF filter ->> 'after_at' IS NOT NULL THEN
        conditions := conditions || format(
            ' AND a.at <= %1$s AND (a.at, a.scope, a.key, a.generation, a.event COLLATE "C",
              a.attempt, a.fence) < (%1$s, %2$L, %3$L, %4$s, %5$L, %6$L::uuid, %7$s)',
            (filter ->> 'after_at')::bigint, filter ->> 'after_scope', filter ->> 'after_key',
            (filter ->> 'after_generation')::integer, filter ->> 'after_event',
            filter ->> 'after_attempt', (filter ->> 'after_fence')::bigint);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT a.at, a.scope, a.key, a.generation, a.event, a.attempt, a.fence, a.reason,
                a.reply_status, ''\x01''::bytea, NULL::text, NULL::bytea
         FROM onceward.audit_records a WHERE %s
         ORDER BY a.at DESC, a.scope DESC, a.key DESC, a.generation DESC, a.event COLLATE "C" DESC,
                  a.attempt DESC, a.fence DESC LIMIT %s',
        conditions, (filter ->> 'limit')::integer);
END
$$;

-- How many records there are in each state, and the oldest of those that are open. Up to `most`
-- records are counted; of more, some pages are read and the rest is reckoned from them. What is open
-- has an index, and is counted up to `most`; what is in progress, among the first `most` rows of the list
-- of leases, in which those come first whose lease was over first.
CREATE FUNCTION onceward.stats(at bigint, most bigint)
RETURNS TABLE (state text, records bigint, estimated boolean, oldest bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    now bigint := onceward.micros(stats.at);
    pages float8;
    percent float8;
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM onceward.records LIMIT most + 1) r) <= most THEN
        RETURN QUERY
            SELECT onceward.shown_state(r.state, r.expires_at, now), count(*), false,
                   min(CASE WHEN r.state IN ('in_progress', 'unknown') THEN r.started_at
                            ELSE r.created_at END)
            FROM onceward.records r
            WHERE onceward.is_there(r.state, r.expires_at, r.tombstone, now)
            GROUP BY 1;
        RETURN;
    END IF;
    pages := greatest(pg_relation_size('onceward.records') / current_setting('block_size')::float8, 1);
    percent := least(100, 200000 / pages);
    RETURN QUERY
        SELECT s.name, coalesce(round(c.found * 100 / percent), 0)::bigint, true, NULL::bigint
        FROM unnest(ARRAY['completed', 'failed_retryable', 'expired']) s (name)
        LEFT JOIN (
            SELECT onceward.shown_state(r.state, r.expires_at, now) AS shown, count(*) AS found
            FROM onceward.records r TABLESAMPLE SYSTEM (percent)
            WHERE onceward.is_there(r.state, r.expires_at, r.tombstone, now)
            GROUP BY 1) c ON c.shown = s.name;
    RETURN QUERY
        SELECT 'pending', least(count(*), most), count(*) > most, min(r.created_at)
        FROM (SELECT r.created_at FROM onceward.records r WHERE r.due_at IS NOT NULL
              ORDER BY r.due_at LIMIT most + 1) r;
    RETURN QUERY
        WITH listed AS MATERIALIZED (
            SELECT l.created_at FROM onceward.leases l ORDER BY l.check_at LIMIT most + 1)
        SELECT 'in_progress', least(count(*), most),
               count(*) > most OR (SELECT count(*) FROM listed) > most, min(r.started_at)
        FROM (SELECT r.started_at
              FROM (SELECT DISTINCT l.created_at FROM listed l) l
              CROSS JOIN LATERAL (SELECT r.started_at FROM onceward.records r
                                  WHERE r.created_at = l.created_at AND r.state = 'in_progress'
                                  OFFSET 0) r
              LIMIT most + 1) r;
    RETURN QUERY
        SELECT 'unknown', least(count(*), most), count(*) > most, min(r.started_at)
        FROM (SELECT r.started_at FROM onceward.records r WHERE r.reconcile_after IS NOT NULL
              ORDER BY r.reconcile_after LIMIT most + 1) r;
END
$$;
