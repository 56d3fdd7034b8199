-- What an attempt writes to its record while nobody has taken it away; else returns the record.
-- KEYS: record, writers. ARGV: writer, acked, evicted, now, member, stamp, attempt, fence, what, then of
-- 'renew' the time, of 'complete' status and reply, of 'release' and 'unknown' why.
local now = time(ARGV[4])
local member, what = ARGV[5], ARGV[9]
local is = redis.call('HMGET', KEYS[1], 's', 'a', 'f', 'l', 't', 'o', 'w', 'b')
local function otherwise() return {'found', text(now), redis.call('HGETALL', KEYS[1])} end
if is[1] ~= 'in_progress' or is[2] ~= ARGV[7] or is[3] ~= ARGV[8] then return otherwise() end
if is[6] == 'a' or (is[6] == 'r' and what == 'release') then return otherwise() end
if tonumber(is[5]) > FAR or tonumber(is[4]) > FAR then return otherwise() end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
local due = is[7]
if what == 'renew' then
    local to = math.max(tonumber(is[4]), now + tonumber(ARGV[10]))
    redis.call('HSET', KEYS[1], 'v', ARGV[6], 'l', text(to))
    if due ~= '' then redis.call('ZADD', tag .. due, text(to), member) end
    return {'applied', counted}
end
redis.call('ZREM', tag .. 'I', member)
if due ~= '' then redis.call('ZREM', tag .. due, member) end
if what == 'unknown' then
    redis.call('HSET', KEYS[1], 'v', ARGV[6], 's', 'unknown', 'x', ARGV[10], 'k', text(now))
    redis.call('ZADD', tag .. 'U', is[8], member)
    redis.call('ZADD', tag .. 'u', text(now), member)
    return {'applied', counted}
end
local ends = text(now + tonumber(is[5]))
redis.call('DEL', tag .. 'b:' .. member)
if what == 'complete' then
    redis.call('HSET', KEYS[1], 'v', ARGV[6], 's', 'completed', 'n', text(now), 'e', ends,
        'y', ARGV[10], 'p', ARGV[11])
    redis.call('HDEL', KEYS[1], 'x', 'k')
    redis.call('ZADD', tag .. 'C', ends, member)
else
    redis.call('HSET', KEYS[1], 'v', ARGV[6], 's', 'failed_retryable', 'n', text(now), 'e', ends,
        'x', ARGV[10])
    redis.call('HDEL', KEYS[1], 'k')
    redis.call('ZADD', tag .. 'F', ends, member)
end
return {'applied', counted}
