-- Records whose time has come, by these indexes, without what was replied.
-- KEYS: any of the bucket. ARGV: now, how many to pass over, how many at most, indexes.
local now = text(time(ARGV[1]))
local due = {}
for i = 4, #ARGV do
    local members = redis.call('ZRANGEBYSCORE', tag .. ARGV[i], '-inf', now, 'LIMIT', ARGV[2], ARGV[3])
    for _, member in ipairs(members) do
        due[#due + 1] = {member, plain(tag .. 'r:' .. member)}
    end
end
return {now, due}
