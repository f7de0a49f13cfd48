#!lua
-- KEYS: meta, records, standing, blocks, journal. ARGV: name, record, ttl in ms, room.
-- Returns the record that is stored under the name, and the size of the session; writes nothing and returns nil if a
-- new record would make the session larger than room (below 0: unbounded). The session lives at least ttl from now on.
local bytes = tonumber(redis.call('HGET', KEYS[1], 'bytes')) or 0
local size = bytes + redis.call('HSTRLEN', KEYS[1], 'body')
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then
    local added = #ARGV[1] + #ARGV[2]
    local room = tonumber(ARGV[4])
    size = size + added
    if room >= 0 and size > room then
        return false
    end
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
    redis.call('HSET', KEYS[1], 'bytes', string.format('%d', bytes + added))
end
for _, key in ipairs(KEYS) do
    if redis.call('PTTL', key) < tonumber(ARGV[3]) then
        redis.call('PEXPIRE', key, ARGV[3])
    end
end
return { redis.call('HGET', KEYS[2], ARGV[1]), size }
