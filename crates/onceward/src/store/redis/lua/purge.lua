-- Deletes audit records that are old enough, but for those of a generation that is still there.
-- KEYS: any of the bucket, writers. ARGV: now, age, limit, how many to pass over.
local now = time(ARGV[1])
local limit, passed = tonumber(ARGV[3]), tonumber(ARGV[4])
local old = redis.call('ZRANGEBYSCORE', tag .. 'o', '-inf', text(now - tonumber(ARGV[2])), 'LIMIT', passed, 256)
local purged, looked = 0, 0
for _, entry in ipairs(old) do
    if purged >= limit then break end
    looked = looked + 1
    local digest, member = string.sub(entry, 1, 16), string.sub(entry, 17)
    local key = tag .. 'a:' .. member
    local generation = string.match(redis.call('HGET', key, digest) or '', '^%d+')
    if generation ~= redis.call('HGET', tag .. 'r:' .. member, 'g') then
        redis.call('HDEL', key, digest)
        redis.call('ZREM', tag .. 'o', entry)
        purged = purged + 1
    end
end
return {purged, looked, #old}
