#!lua flags=allow-oom
-- KEYS: sizes, ends. ARGV: session, its bytes (0: it is gone, below 0: only read), ttl in ms.
-- Returns the bytes of the tenant's other sessions. The field "" of sizes is the sum of all. May be repeated.
if redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[2]) + 1 then
    redis.call('UNLINK', KEYS[1], KEYS[2]) -- one of the two was lost: start counting again
end
local function note(session, size)
    local before = tonumber(redis.call('HGET', KEYS[1], session) or 0)
    if size ~= before then
        redis.call('HINCRBY', KEYS[1], '', size - before)
    end
    if size == 0 then
        redis.call('HDEL', KEYS[1], session)
        redis.call('ZREM', KEYS[2], session)
    else
        redis.call('HSET', KEYS[1], session, size)
    end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, session in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 256)) do
    note(session, 0)
end
local size = tonumber(ARGV[2])
if size >= 0 then
    note(ARGV[1], size)
end
if size > 0 then
    redis.call('ZADD', KEYS[2], 'GT', string.format('%d', now + ARGV[3]), ARGV[1])
    for _, key in ipairs(KEYS) do
        if redis.call('PTTL', key) < tonumber(ARGV[3]) then
            redis.call('PEXPIRE', key, ARGV[3])
        end
    end
end
local all = tonumber(redis.call('HGET', KEYS[1], '') or 0)
return all - tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
