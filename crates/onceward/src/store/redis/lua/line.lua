-- Who waits in these indexes, and since when, without those of some routes.
-- KEYS: any of the bucket. ARGV: now, how many at most, number of routes, routes, indexes.
local now = text(time(ARGV[1]))
local most, routes = tonumber(ARGV[2]), {}
local last = 3 + tonumber(ARGV[3])
for i = 4, last do routes[ARGV[i]] = true end
local line = {}
for i = last + 1, #ARGV do
    local taken, passed = 0, 0
    repeat
        local page = redis.call('ZRANGEBYSCORE', tag .. ARGV[i], '-inf', now, 'WITHSCORES', 'LIMIT',
            passed, most)
        for j = 1, #page, 2 do
            if taken < most and not (last > 3 and routes[redis.call('HGET', tag .. 'r:' .. page[j], 'm')]) then
                taken = taken + 1
                line[#line + 1] = {ARGV[i], page[j], page[j + 1]}
            end
        end
        passed = passed + #page / 2
    until taken >= most or #page / 2 < most
end
return {now, line}
