#!lua
-- KEYS: meta, records, standing, blocks. ARGV: name, record, ttl in ms. The bytes that are kept under the name.
-- The session lives as long as its newest record, and never shorter than before.
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
for _, key in ipairs(KEYS) do
    if redis.call('PTTL', key) < tonumber(ARGV[3]) then
        redis.call('PEXPIRE', key, ARGV[3])
    end
end
return redis.call('HGET', KEYS[2], ARGV[1])
