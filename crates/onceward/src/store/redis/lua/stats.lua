-- How many records there are in each state, and which has been open for longest. Those past retention
-- that the reaper has not seen are looked at, up to a limit.
-- KEYS: any of the bucket. ARGV: now, limit.
local now = time(ARGV[1])
local function size(index) return redis.call('ZCARD', tag .. index) end
local function oldest(index)
    return redis.call('ZRANGE', tag .. index, 0, 0, 'WITHSCORES')[2] or ''
end
local function after(index) return redis.call('ZCOUNT', tag .. index, '(' .. text(now), '+inf') end
local expired, estimated = after('E'), 0
for index in string.gmatch('CF', '.') do
    local over = redis.call('ZRANGEBYSCORE', tag .. index, '-inf', text(now), 'LIMIT', 0, ARGV[2])
    for _, member in ipairs(over) do
        local ends = redis.call('HMGET', tag .. 'r:' .. member, 'e', 'z')
        if ends[2] and tonumber(ends[1]) + tonumber(ends[2]) > now then expired = expired + 1 end
    end
    local rest = size(index) - after(index) - #over
    if rest > 0 then
        expired = expired + rest
        estimated = 1
    end
end
return {size('P'), size('I'), after('C'), after('F'), size('U'), expired, estimated,
    oldest('P'), oldest('I'), oldest('U')}
