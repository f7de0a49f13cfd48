#!lua
-- KEYS: meta, records, standing, blocks, journal, then on a single server newest (as in newest.lua) of all and of the
-- tenant, and entries of the index. ARGV: revision, ttl in ms, room, session, body, the entry as newest names it, an item of the journal ('' for
-- none), the most items of it, then digest and block in turns. Compare and set: returns the size of the session if it
-- was written, with index entries that lead to it. Writes nothing and returns -1 if the revision is stale, -2 if new
-- blocks would make the session larger than room (below 0: unbounded). A second run finds the revision stale.
local revision = tonumber(redis.call('HGET', KEYS[1], 'revision')) or 0
if revision ~= tonumber(ARGV[1]) then
    return -1
end
local added = 0
for i = 9, #ARGV, 2 do
    if redis.call('HEXISTS', KEYS[4], ARGV[i]) == 0 then
        added = added + #ARGV[i] + #ARGV[i + 1]
    end
end
local bytes = (tonumber(redis.call('HGET', KEYS[1], 'bytes')) or 0) + added
local room = tonumber(ARGV[3])
if added > 0 and room >= 0 and bytes + #ARGV[5] > room then
    return -2
end
redis.call('HSET', KEYS[1], 'body', ARGV[5], 'revision', string.format('%d', revision + 1),
    'bytes', string.format('%d', bytes))
for i = 9, #ARGV, 2 do
    redis.call('HSETNX', KEYS[4], ARGV[i], ARGV[i + 1])
end
if ARGV[7] ~= '' then
    redis.call('RPUSH', KEYS[5], ARGV[7])
    redis.call('LTRIM', KEYS[5], -ARGV[8], -1)
    redis.call('HINCRBY', KEYS[1], 'journal', 1)
end
for i = 1, 5 do
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
if #KEYS > 5 then
    local time = redis.call('TIME')
    for i = 6, 7 do
        redis.call('ZADD', KEYS[i], string.format('%d', time[1] * 1000000 + time[2]), ARGV[6])
        redis.call('ZREMRANGEBYRANK', KEYS[i], 0, -1001)
        redis.call('PEXPIRE', KEYS[i], ARGV[2])
    end
end
for i = 8, #KEYS do
    redis.call('SET', KEYS[i], ARGV[4], 'PX', ARGV[2])
end
return bytes + #ARGV[5]
