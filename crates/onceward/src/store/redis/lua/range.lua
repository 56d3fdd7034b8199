-- A part of an index in its order, with the records or the audit records that it tells of.
-- KEYS: any of the bucket. ARGV: now, index, 'up' or 'down', least, greatest, how many to pass over,
-- how many at most.
local members
if ARGV[3] == 'up' then
    members = redis.call('ZRANGEBYSCORE', tag .. ARGV[2], ARGV[4], ARGV[5], 'WITHSCORES', 'LIMIT', ARGV[6], ARGV[7])
else
    members = redis.call('ZREVRANGEBYSCORE', tag .. ARGV[2], ARGV[5], ARGV[4], 'WITHSCORES', 'LIMIT', ARGV[6], ARGV[7])
end
local part = {}
for i = 1, #members, 2 do
    local member = members[i]
    local what
    if ARGV[2] == 'o' then
        local encoded = redis.call('HGET', tag .. 'a:' .. string.sub(member, 17), string.sub(member, 1, 16))
        what = {encoded or ''}
    else
        what = plain(tag .. 'r:' .. member)
    end
    part[#part + 1] = {member, members[i + 1], what}
end
return {text(time(ARGV[1])), part}
