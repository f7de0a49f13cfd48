#!lua
-- KEYS: lease. ARGV: holder, ttl in ms. Returns whether the holder has the lease now (1 or 0), and the handover of the
-- last holder. A second run by the holder renews the lease.
local found = redis.call('HMGET', KEYS[1], 'holder', 'left')
if found[2] then
    return { 0, found[2] }
end
if found[1] and found[1] ~= ARGV[1] then
    return { 0, '' }
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, '' }
