#!lua
-- KEYS: meta, records, standing, blocks. ARGV: revision, ttl in ms, body, then digest and block in turns.
-- Compare and set: 1 if written, 0 (and nothing written) if the revision is stale. A second run is stale.
local revision = tonumber(redis.call('HGET', KEYS[1], 'revision') or 0)
if revision ~= tonumber(ARGV[1]) then
    return 0
end
redis.call('HSET', KEYS[1], 'body', ARGV[3], 'revision', string.format('%d', revision + 1))
for i = 4, #ARGV, 2 do
    redis.call('HSETNX', KEYS[4], ARGV[i], ARGV[i + 1])
end
for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ARGV[2])
end
return 1
